#include "train/ema.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>

#include "io/torch/weights.h"
#include "mhla/error.h"

namespace mhla::train {

Ema::Ema(const EmaOptions& options, std::shared_ptr<models::Model> copy, const models::Model& model)
    : options_(options), copy_(std::move(copy)) {
  if (!(options.decay > 0 && options.decay < 1)) {
    fail("train", "train.ema.decay: expected above 0 and below 1, got ", options.decay);
  }
  const at::NoGradGuard no_gradient;
  const io::StateDict from = io::state_dict(model), to = io::state_dict(*copy_);
  for (const auto& [name, average] : to) {
    const at::Tensor& value = from.at(name);
    average.copy_(value);
    average.set_requires_grad(false);
    if (average.is_floating_point()) {
      averages_.push_back(average);
      values_.push_back(value);
    } else {
      others_.emplace_back(average, value);
    }
  }
  copy_->eval();
}

void Ema::update(std::int64_t update) {
  const at::NoGradGuard no_gradient;
  if (averages(update)) {
    at::_foreach_lerp_(averages_, values_, 1.0 - options_.decay);
  } else {
    at::_foreach_copy_(averages_, values_);
  }
  for (const auto& [average, value] : others_) average.copy_(value);
}

}  // namespace mhla::train
