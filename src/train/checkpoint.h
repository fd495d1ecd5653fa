// Checkpoints of a run: one folder a step, complete or absent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "io/torch/weights.h"

namespace mhla::train {

// What a checkpoint holds: `<name>.safetensors` each, and numbers in state.json.
struct CheckpointContent {
  std::map<std::string, io::StateDict> files;  // "model", "ema", "optimizer"
  std::map<std::string, double> numbers;
};

class Checkpoints {
 public:
  // `folder` holds step-00001000 and so on.
  Checkpoints(std::string folder, std::int64_t keep);

  // The newest; temporary folders and what other programs left are passed over.
  static std::optional<std::string> latest(const std::string& folder);

  // Written beside its place, flushed to the disk and renamed, then the oldest are removed. Where
  // that fails (a full disk) the error says so, and the checkpoints before it stay.
  void save(std::int64_t step, const CheckpointContent& content);

 private:
  void remove_old() const;

  std::string folder_;
  std::int64_t keep_;
};

std::int64_t step_of(const std::string& checkpoint);  // out of its name

// Copies the stored tensors into these, which must have the same names and shapes.
void restore(const std::string& checkpoint, const std::string& file, const io::StateDict& into);

}  // namespace mhla::train
