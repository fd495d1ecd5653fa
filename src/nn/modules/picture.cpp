// Focused linear attention and InLine attention.
#include "nn/modules/picture.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/zeros.h>

#include "nn/functional/bidirectional.h"
#include "nn/functional/layers.h"
#include "nn/functional/precision.h"

namespace mhla::nn {
namespace {

using at::Tensor;
namespace f = functional;

const AttentionName kFocused("focused", factory_of<FocusedAttention>("focused"));
const AttentionName kInline("inline", factory_of<InlineAttention>("inline"));

// A 1x1 convolution whose groups are the heads: only inside a head do channels meet.
Conv1d make_headwise(std::int64_t in, std::int64_t out, std::int64_t heads) {
  return std::make_shared<torch::nn::Conv1dImpl>(
      torch::nn::Conv1dOptions(in, out, 1).groups(heads));
}

}  // namespace

FocusedAttention::FocusedAttention(const Config& config)
    : heads_(config.heads), grid_(config.grid), made_for_(config.grid), power_(config.power) {
  check_heads("focused", config.dim, heads_);
  check_grid("focused", grid_, 2);
  qkv_ = register_module("qkv", make_linear(config.dim, 3 * config.dim, config.qkv_bias));
  proj_ = register_module("proj", make_linear(config.dim, config.dim, true));
  dwc_ = register_module("dwc", make_depthwise(config.dim / heads_, config.kernel));
  positional_encoding_ = register_parameter("positional_encoding",
                                            at::zeros({1, grid_[0] * grid_[1], config.dim}));
  scale_ = register_parameter("scale", at::zeros({1, 1, config.dim}));
}

// Another resolution reads them interpolated.
Tensor FocusedAttention::positions() const {
  if (grid_ == made_for_) return positional_encoding_;
  const Tensor picture = positional_encoding_.transpose(1, 2).unflatten(2, made_for_);
  return at::upsample_bilinear2d(picture, grid_, /*align_corners=*/false)
      .flatten(2)
      .transpose(1, 2);
}

Tensor FocusedAttention::forward(const Tensor& x) {
  const std::vector<Tensor> qkv = qkv_->forward(x).chunk(3, -1);
  const Tensor q = split_heads(qkv[0], heads_), v = split_heads(qkv[2], heads_);
  // Under autocast the projection is 16-bit, and f32 positions would widen what follows.
  const Tensor k = split_heads(qkv[1] + positions().to(qkv[1].scalar_type()), heads_);
  const Tensor o = f::grid_convolution(v, grid_, dwc_->weight, dwc_->bias,
                                       f::focused_attention(q, k, v, scale_, power_));
  return proj_->forward(o.flatten(2));
}

InlineAttention::InlineAttention(const Config& config)
    : heads_(config.heads), grid_(config.grid), class_token_(config.class_token) {
  check_heads("inline", config.dim, heads_);
  check_grid("inline", grid_, 2);
  qkv_ = register_module("qkv", make_linear(config.dim, 3 * config.dim, config.qkv_bias));
  proj_ = register_module("proj", make_linear(config.dim, config.dim, true));
  const auto residual = register_module("residual", std::make_shared<torch::nn::Module>());
  residual0_ = residual->register_module("0", make_headwise(config.dim, config.dim, heads_));
  residual2_ = residual->register_module("2", make_headwise(config.dim, 9 * config.dim, heads_));
}

// The pictures' kernels differ, so the batch becomes channels of one depthwise convolution.
Tensor InlineAttention::local(const Tensor& x, const Tensor& v) const {
  const Tensor hidden = at::gelu(residual0_->forward(x.mean(1).unsqueeze(-1)));
  const Tensor kernels = residual2_->forward(hidden).reshape({-1, 1, 3, 3});  // [B * C, 1, 3, 3]
  const Tensor tokens = v.flatten(2).slice(1, class_token_ ? 1 : 0);          // [B, N, C]
  const Tensor picture = tokens.transpose(1, 2).reshape({1, -1, grid_[0], grid_[1]});
  const std::vector<std::int64_t> ones{1, 1};
  const Tensor y = at::conv2d(picture, kernels, /*bias=*/{}, ones, ones, ones, kernels.size(0));
  const Tensor rows = y.reshape({x.size(0), -1, tokens.size(1)}).transpose(1, 2);
  return class_token_ ? at::constant_pad_nd(rows, {0, 0, 1, 0}) : rows;
}

Tensor InlineAttention::forward(const Tensor& x) {
  const std::vector<Tensor> qkv = qkv_->forward(x).unflatten(-1, {3, heads_, -1}).unbind(2);
  const Tensor o = f::inline_attention(qkv[0], qkv[1], qkv[2]).flatten(2);
  return proj_->forward(o + local(x, qkv[2]));
}

}  // namespace mhla::nn
