// Whole networks for `mhla bench models`. They come from a module loaded at run time, so that the
// program itself starts fast and runs where LibTorch is not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mhla::cli {

struct NetworkRow {
  std::string name;     // "dit-s/2@512"
  std::string model;    // as create_model reads it
  std::string options;  // "image_size=512"
  std::int64_t batch = 1;
  bool compared = true;     // with softmax and linear attention
  double over_softmax = 1;  // what the project asks of itself
};

// One network, ready to run. Of several ways of the same attention the fastest counts.
struct NetworkCall {
  std::string attention;          // "mhla", "paper", "softmax", "linear"
  std::string way;                // softmax: the back end
  std::function<void()> forward;  // waits until the result is there
};

class Networks {
 public:
  virtual ~Networks() = default;
  virtual std::string version() const = 0;  // "LibTorch 2.11.0"
  virtual std::string device() const = 0;   // "cuda:0", "cpu"
  virtual std::string dtype() const = 0;    // what they compute in: "bf16" on a GPU
  // Random weights and inputs. Throws unless the result is finite and, computed once more in f32,
  // about the same.
  virtual std::vector<NetworkCall> prepare(const NetworkRow& row, const std::string& attention) = 0;
};

// Throws with the way out when the module is missing or cannot be loaded.
std::unique_ptr<Networks> load_networks();

}  // namespace mhla::cli

// What the module exports. Both sides come from the same build, so C++ types may pass.
extern "C" mhla::cli::Networks* mhla_bench_make_networks();
