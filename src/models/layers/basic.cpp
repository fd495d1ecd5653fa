#include "models/layers/basic.h"

#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "nn/functional/token_maps.h"
#include "nn/modules/creation.h"

namespace mhla::models {

using at::Tensor;

Tensor new_parameter(std::vector<std::int64_t> shape) {
  return at::empty(shape, at::TensorOptions().device(nn::creation().device));
}

LayerNormLayer::LayerNormLayer(std::int64_t width, double eps, bool affine) : eps_(eps) {
  if (!affine) return;
  weight = register_parameter("weight", at::ones({width}));
  bias = register_parameter("bias", at::zeros({width}));
}

ConvLayer::ConvLayer(const ConvShape& shape) : shape_(shape) {
  const std::size_t axes = shape.kernel.size();
  if (shape_.stride.empty()) shape_.stride.assign(axes, 1);
  if (shape_.padding.empty()) shape_.padding.assign(axes, 0);
  std::vector<std::int64_t> size{shape.out, shape.in / shape.groups};
  size.insert(size.end(), shape.kernel.begin(), shape.kernel.end());
  weight = register_parameter("weight", new_parameter(size));
  if (shape.bias) bias = register_parameter("bias", new_parameter({shape.out}));
}

Tensor ConvLayer::forward(const Tensor& x) const {
  const std::vector<std::int64_t> ones(shape_.kernel.size(), 1);
  const auto convolve = [&](auto function) {
    return function(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, shape_.stride,
                    shape_.padding, ones, shape_.groups);
  };
  if (shape_.kernel.size() == 3) {
    return convolve([](auto&&... a) { return at::conv3d(a...); });
  }
  return convolve([](auto&&... a) { return at::conv2d(a...); });
}

Conv make_conv(const ConvShape& shape) { return std::make_shared<ConvLayer>(shape); }

Conv make_depthwise(std::int64_t channels, std::int64_t size) {
  return make_conv({.in = channels,
                    .out = channels,
                    .kernel = {size, size},
                    .padding = {size / 2, size / 2},
                    .groups = channels});
}

MlpLayer::MlpLayer(std::int64_t width, std::int64_t hidden, std::int64_t out, Gelu gelu)
    : fc1_(register_module("fc1", make_linear(width, hidden, true))),
      fc2_(register_module("fc2", make_linear(hidden, out, true))),
      gelu_(gelu) {}

Tensor MlpLayer::forward(const Tensor& x) const {
  return fc2_->forward(linear_gelu(fc1_, x, gelu_));
}

TableLayer::TableLayer(std::int64_t rows, std::int64_t width)
    : weight(register_parameter("weight", new_parameter({rows, width}))) {}

Tensor TableLayer::forward(const Tensor& index) const { return at::embedding(weight, index); }

Tensor gelu(const Tensor& x, Gelu kind) {
  return at::gelu(x, kind == Gelu::tanh ? "tanh" : "none");
}

Tensor linear_gelu(const Linear& layer, const Tensor& x, Gelu kind) {
  const bool gradient = at::GradMode::is_enabled() &&
                        (x.requires_grad() || layer->weight.requires_grad());
  // NOTE: on a CPU this function has the other formula, and backward needs what goes into GELU.
  if (kind != Gelu::tanh || gradient || !layer->bias.defined() ||
      !nn::functional::is_plain_cuda(x) || x.scalar_type() != layer->weight.scalar_type() ||
      x.dim() < 2) {
    return gelu(layer->forward(x), kind);
  }
  return at::_addmm_activation(layer->bias, x.flatten(0, -2), layer->weight.t(), 1, 1,
                               /*use_gelu=*/true)
      .unflatten(0, x.sizes().slice(0, x.dim() - 1));
}

Tensor patch_tokens(const ConvLayer& patches, const Tensor& x) {
  const ConvShape& shape = patches.shape();
  const auto axes = static_cast<std::int64_t>(shape.kernel.size());
  // [B, channels, n1, k1, n2, k2 ...] -> [B, n1, n2 ..., channels, k1, k2 ...]
  Tensor cut = x;
  std::vector<std::int64_t> order{0};
  for (std::int64_t i = axes; i-- > 0;) {
    const std::int64_t size = shape.kernel[static_cast<std::size_t>(i)];
    cut = cut.narrow(2 + i, 0, cut.size(2 + i) / size * size).unflatten(2 + i, {-1, size});
  }
  for (std::int64_t i = 0; i < axes; ++i) order.push_back(2 + 2 * i);
  order.push_back(1);
  for (std::int64_t i = 0; i < axes; ++i) order.push_back(3 + 2 * i);
  const Tensor tokens = cut.permute(order).flatten(1 + axes).flatten(1, axes);
  return pointwise(patches, tokens);
}

Tensor pointwise(const ConvLayer& layer, const Tensor& x) {
  return nn::functional::linear(x, layer.weight.flatten(1), layer.bias);
}

Tensor drop_path(const Tensor& branch, double rate, bool training) {
  if (!training || rate == 0.0) return branch;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(branch.dim()), 1);
  shape[0] = branch.size(0);
  const double keep = 1.0 - rate;
  Tensor mask = at::empty(shape, branch.options()).bernoulli_(keep);
  return branch * mask.div_(keep);
}

Tensor to_grid(const Tensor& tokens, at::IntArrayRef grid) {
  return tokens.transpose(1, 2).unflatten(2, grid);
}

Tensor to_tokens(const Tensor& picture) { return picture.flatten(2).transpose(1, 2); }

void count_mlp(CostSheet& sheet, double rows, double width, double hidden) {
  sheet.linear("mlp", rows, width, hidden);
  sheet.keep("mlp", rows * hidden);
  sheet.linear("mlp", rows, hidden, width);
}

}  // namespace mhla::models
