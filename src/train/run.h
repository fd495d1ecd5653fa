// `mhla train` and `mhla eval` behind an interface without LibTorch: the program loads the module
// that holds them when it needs it.
#pragma once

#include <cstdint>
#include <string>

#include "io/config.h"

namespace mhla::train {

struct TrainCommand {
  io::Config config;
  std::string folder;  // of the run
  bool resume = false;
};

struct EvalCommand {
  io::Config config;
  // A run (its newest checkpoint), one checkpoint of a run, or a file of weights.
  std::string path;
  std::string weights = "auto";  // "ema", "model"; auto: the averaged ones where there are any
  bool json = false;
  std::int64_t examples = 0;  // pictures with their predictions, into <run>/examples
};

class Training {
 public:
  virtual ~Training() = default;
  // The configuration with every default in it. Throws for unknown keys.
  virtual std::string resolved(io::Config config) = 0;
  // Returns the signal that ended it before its last step, or 0.
  virtual int train(const TrainCommand& command) = 0;
  // The result as text or as a JSON document.
  virtual std::string evaluate(const EvalCommand& command) = 0;
};

}  // namespace mhla::train

// What the module exports. Both sides come from the same build, so C++ types may pass.
extern "C" mhla::train::Training* mhla_make_training();
