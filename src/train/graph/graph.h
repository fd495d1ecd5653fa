// Work on a GPU recorded once and replayed: the host starts a whole step by one call.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace mhla::train {

class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Records what `work` starts on the current stream, which is not the device's default one;
  // nothing runs yet. What it reads and writes must live as long as the graph. Returns the number
  // of operations. Once it threw, the device's generator and allocator are not usable any more.
  virtual std::size_t record(const std::function<void()>& work) = 0;
  // On the current stream. Random numbers follow the generator's seed of now.
  virtual void replay() = 0;
};

// One of the two is in the build: CUDA's, or a stub.
std::unique_ptr<StepGraph> make_step_graph();
// Why this device cannot; empty where it can.
std::string no_step_graph(c10::Device device);

}  // namespace mhla::train
