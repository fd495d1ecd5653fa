#include "models/layers/conditioning.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>

#include "models/layers/init.h"

namespace mhla::models {

using at::Tensor;

TimestepEmbedder::TimestepEmbedder(std::int64_t width, const TimestepOptions& options)
    : options_(options) {
  const auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
  first_ = mlp->register_module("0", make_linear(options.width, width, true));
  second_ = mlp->register_module("2", make_linear(width, width, true));
}

Tensor TimestepEmbedder::forward(const Tensor& t) const {
  const Tensor waves = embed_timesteps(t, options_).to(first_->weight.scalar_type());
  return second_->forward(at::silu(first_->forward(waves)));
}

void TimestepEmbedder::reset(double std) {
  init::normal(first_->weight, std);
  init::normal(second_->weight, std);
}

LabelEmbedder::LabelEmbedder(std::int64_t classes, std::int64_t width, double dropout)
    : classes_(classes),
      dropout_(dropout),
      table_(register_module("embedding_table", std::make_shared<TableLayer>(classes + 1, width))) {
}

Tensor LabelEmbedder::forward(const Tensor& labels) const {
  if (!is_training() || dropout_ == 0.0) return table_->forward(labels);
  const Tensor dropped = at::rand(labels.sizes(), labels.options().dtype(at::kFloat)).lt(dropout_);
  return table_->forward(at::where(dropped, at::full_like(labels, classes_), labels));
}

void LabelEmbedder::reset(double std) { init::normal(table_->weight, std); }

Modulation::Modulation(std::int64_t width, std::int64_t vectors)
    : linear_(register_module("1", make_linear(width, vectors * width, true))) {}

Tensor Modulation::forward(const Tensor& c) const { return linear_->forward(at::silu(c)); }

}  // namespace mhla::models
