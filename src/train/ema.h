// Averaged weights: a second model that follows the first.
#pragma once

#include <memory>

#include "models/model.h"
#include "train/options.h"

namespace mhla::train {

class Ema {
 public:
  // `copy`: a model of the same kind; it takes the weights of `model`.
  Ema(const EmaOptions& options, std::shared_ptr<models::Model> copy, const models::Model& model);

  // After the update number `update`, counted from 1. Averages parameters and buffers, as timm.
  void update(std::int64_t update);
  // Whether that update averages and does not copy.
  bool averages(std::int64_t update) const { return update >= options_.start; }

  models::Model& model() { return *copy_; }

 private:
  EmaOptions options_;
  std::shared_ptr<models::Model> copy_;
  std::vector<at::Tensor> averages_, values_;              // floating point
  std::vector<std::pair<at::Tensor, at::Tensor>> others_;  // counters: copied
};

}  // namespace mhla::train
