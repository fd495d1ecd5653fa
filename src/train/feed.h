// Batches on the device, copied there while the step before still computes.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

#include "data/loader.h"

namespace mhla::train {

class Feed {
 public:
  explicit Feed(c10::Device device);

  // The batch that prefetch() began with, or else the next of the loader.
  data::Batch next(data::Loader& loader);
  // Waits for the loader, not for the device; to be called once a step is on its way.
  void prefetch(data::Loader& loader);
  void forget() { ahead_.reset(); }  // before the loader is moved elsewhere

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;  // of the copies; none on a CPU
  std::optional<c10::Event> copied_;
  std::optional<data::Batch> ahead_;
};

}  // namespace mhla::train
