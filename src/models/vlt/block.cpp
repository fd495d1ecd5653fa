// One block of VLT.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <cmath>

#include "models/vlt/vlt.h"

namespace mhla::models {
namespace {

using at::Tensor;

Conv make_pointwise(std::int64_t in, std::int64_t out) {
  return make_conv({.in = in, .out = out, .kernel = {1, 1}});
}

}  // namespace

LayerNorm VltBlock::add_norm(const char* name, std::int64_t width) {
  const auto holder = register_module(name, std::make_shared<torch::nn::Module>());
  return holder->register_module("norm", std::make_shared<LayerNormLayer>(width, 1e-6, true));
}

VltBlock::VltBlock(const VltBlockShape& shape, const std::string& attention, const Place& place,
                   const std::string& options)
    : shape_(shape) {
  const std::int64_t width = shape.width;
  const auto hidden = std::llround(static_cast<double>(width) * shape.ffn_ratio);
  norm1_ = add_norm("norm1", width);
  attn_ = register_module("attn", make_attention(attention, place, options));
  norm2_ = add_norm("norm2", width);
  const auto ffn = register_module("ffn", std::make_shared<torch::nn::Module>());
  fc1_ = ffn->register_module("fc1", make_pointwise(width, hidden));
  fc2_ = ffn->register_module("fc2", make_pointwise(hidden, width));
  dwconv_ = ffn->register_module("dwconv", make_depthwise(hidden, 3));
  pos_ = register_module("pos", make_depthwise(width, 3));
  gamma1_ = register_parameter("gamma_1", at::full({1, width, 1, 1}, shape.layer_scale));
  gamma2_ = register_parameter("gamma_2", at::full({1, width, 1, 1}, shape.layer_scale));
}

Tensor VltBlock::feed_forward(const Tensor& x) const {
  const Tensor h = gelu(fc1_->forward(x), Gelu::exact);
  return fc2_->forward(h + dwconv_->forward(h));
}

Tensor VltBlock::forward(const Tensor& input) {
  const auto grid = input.sizes().slice(2).vec();
  const auto branch = [&](const Tensor& y, const Tensor& gamma) {
    return drop_path(gamma * y, shape_.drop_path, is_training());
  };
  Tensor x = input + pos_->forward(input);
  attn_->set_grid(grid);
  x = x + branch(to_grid(attn_->forward(norm1_->forward(to_tokens(x))), grid), gamma1_);
  return x + branch(feed_forward(to_grid(norm2_->forward(to_tokens(x)), grid)), gamma2_);
}

}  // namespace mhla::models
