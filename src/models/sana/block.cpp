// One block of Sana.
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <cmath>

#include "models/layers/init.h"
#include "models/sana/sana.h"
#include "nn/functional/layers.h"

namespace mhla::models {

using at::Tensor;

SanaCrossAttention::SanaCrossAttention(std::int64_t dim, std::int64_t heads)
    : heads_(heads),
      q_linear_(register_module("q_linear", make_linear(dim, dim, true))),
      kv_linear_(register_module("kv_linear", make_linear(dim, 2 * dim, true))),
      proj_(register_module("proj", make_linear(dim, dim, true))) {
  nn::check_heads("cross-attention", dim, heads);
}

Tensor SanaCrossAttention::forward(const Tensor& x, const Tensor& text, const Tensor& mask) const {
  const auto by_head = [this](const Tensor& t) {
    return nn::split_heads(t, heads_).transpose(1, 2);  // [B, H, N, D]
  };
  const auto kv = kv_linear_->forward(text).chunk(2, -1);
  const std::optional<Tensor> allowed = mask.defined() ? std::optional(mask) : std::nullopt;
  const Tensor o = at::scaled_dot_product_attention(by_head(q_linear_->forward(x)), by_head(kv[0]),
                                                    by_head(kv[1]), allowed);
  return proj_->forward(o.transpose(1, 2).flatten(2));
}

GluConvolution::GluConvolution(std::int64_t width, std::int64_t hidden) {
  const auto add = [this](const char* name, const Conv& conv) {
    const auto holder = register_module(name, std::make_shared<torch::nn::Module>());
    return holder->register_module("conv", conv);
  };
  inverted_ = add("inverted_conv", make_conv({.in = width, .out = 2 * hidden, .kernel = {1, 1}}));
  depth_ = add("depth_conv", make_depthwise(2 * hidden, 3));
  point_ = add("point_conv",
               make_conv({.in = hidden, .out = width, .kernel = {1, 1}, .bias = false}));
}

// Tokens stay rows: a 1x1 convolution is a product, and only the 3x3 needs the grid.
Tensor GluConvolution::forward(const Tensor& x, at::IntArrayRef grid) const {
  const Tensor wide = at::silu(pointwise(*inverted_, x)).unsqueeze(2);
  const auto halves = nn::functional::grid_convolution(wide, grid, depth_->weight, depth_->bias)
                          .squeeze(2)
                          .chunk(2, -1);
  return pointwise(*point_, halves[0] * at::silu(halves[1]));
}

SanaBlock::SanaBlock(const SanaConfig& config, const Place& place, const std::string& options)
    : norm_(std::make_shared<LayerNormLayer>(config.dim, 1e-6, /*affine=*/false)) {
  const auto hidden = std::llround(static_cast<double>(config.dim) * config.mlp_ratio);
  attn_ = register_module("attn", make_attention(config.attention, place, options));
  cross_attn_ = register_module(
      "cross_attn", std::make_shared<SanaCrossAttention>(config.dim, config.cross_heads));
  mlp_ = register_module("mlp", std::make_shared<GluConvolution>(config.dim, hidden));
  scale_shift_table_ = register_parameter("scale_shift_table", new_parameter({6, config.dim}));
}

void SanaBlock::reset() {
  init::normal(scale_shift_table_,
               1.0 / std::sqrt(static_cast<double>(scale_shift_table_.size(1))));
  init::constant(cross_attn_->out()->weight, 0.0);
}

void SanaBlock::forward(Residual& x, const Tensor& t, const Text& text, at::IntArrayRef grid) {
  const auto m = (scale_shift_table_ + t).unbind(1);  // shift, scale, gate: attention, then MLP
  x.add(x.attended(*attn_, norm_->norm(), m[0], m[1]), m[2]);
  x.add(cross_attn_->forward(x.value(), text.words, text.mask));
  x.add(mlp_->forward(x.normed(norm_->norm(), m[3], m[4]), grid), m[5]);
}

}  // namespace mhla::models
