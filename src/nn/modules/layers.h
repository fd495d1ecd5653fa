// Small layers that the attention layers are built of.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mhla/error.h"
#include "nn/functional/linear.h"
#include "nn/functional/norms.h"
#include "nn/modules/creation.h"

namespace mhla::nn {

// NOTE: torch::nn::LinearImpl adds the bias in an operation of its own; Python's layer does not.
class LinearLayer : public torch::nn::Cloneable<LinearLayer> {
 public:
  LinearLayer(std::int64_t in, std::int64_t out, bool bias) : in_(in), out_(out), bias_(bias) {
    LinearLayer::reset();
  }
  // Starts as Python's layer does, with the same numbers of the generator.
  void reset() override {
    const at::TensorOptions options = at::TensorOptions().device(creation().device);
    weight = register_parameter("weight", at::empty({out_, in_}, options));
    if (bias_) bias = register_parameter("bias", at::empty({out_}, options));
    if (!creation().fill || weight.is_meta()) return;
    const at::NoGradGuard no_gradient;
    torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
    const double bound = 1.0 / std::sqrt(static_cast<double>(in_));
    if (bias_) bias.uniform_(-bound, bound);
  }
  at::Tensor forward(const at::Tensor& x) const { return functional::linear(x, weight, bias); }

  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], undefined without

 private:
  std::int64_t in_, out_;
  bool bias_;
};

using Linear = std::shared_ptr<LinearLayer>;
using Conv1d = std::shared_ptr<torch::nn::Conv1dImpl>;
using Conv2d = std::shared_ptr<torch::nn::Conv2dImpl>;

inline Linear make_linear(std::int64_t in, std::int64_t out, bool bias) {
  return std::make_shared<LinearLayer>(in, out, bias);
}

// Causal depthwise: only its parameters are used, by functional::short_convolution.
inline Conv1d make_short_convolution(std::int64_t channels, std::int64_t size, bool bias) {
  return std::make_shared<torch::nn::Conv1dImpl>(
      torch::nn::Conv1dOptions(channels, channels, size).groups(channels).bias(bias));
}

inline Conv2d make_depthwise(std::int64_t channels, std::int64_t size) {
  return std::make_shared<torch::nn::Conv2dImpl>(
      torch::nn::Conv2dOptions(channels, channels, size).groups(channels));
}

inline Conv2d make_pointwise(std::int64_t in, std::int64_t out) {
  return std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(in, out, 1));
}

// A 1x1 convolution, on tokens [B, N, C].
inline at::Tensor apply_pointwise(const Conv2d& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight.flatten(1), layer->bias);
}

class RmsNormLayer : public torch::nn::Cloneable<RmsNormLayer> {
 public:
  explicit RmsNormLayer(std::int64_t width, std::optional<double> eps = std::nullopt)
      : width_(width), eps_(eps) {
    reset();
  }
  void reset() override { weight = register_parameter("weight", at::ones({width_})); }
  at::Tensor forward(const at::Tensor& x) const {
    return functional::normed(
        x, {.weight = weight, .eps = eps_.value_or(functional::unsaid_eps(x)), .rms = true});
  }
  // Of a layer with an eps; without, it is one of the type that comes.
  functional::Norm norm() const { return {.weight = weight, .eps = eps_.value(), .rms = true}; }

  at::Tensor weight;

 private:
  std::int64_t width_;
  std::optional<double> eps_;
};
using RmsNorm = std::shared_ptr<RmsNormLayer>;

inline RmsNorm make_rms_norm(std::int64_t width, std::optional<double> eps = std::nullopt) {
  return std::make_shared<RmsNormLayer>(width, eps);
}

inline at::Tensor split_heads(const at::Tensor& x, std::int64_t heads) {
  return x.unflatten(-1, {heads, -1});  // [B, N, C] -> [B, N, H, D]
}

inline void check_heads(const char* layer, std::int64_t width, std::int64_t heads) {
  if (width > 0 && heads > 0 && width % heads == 0) return;
  fail("attention", layer, ": a width of ", width, " does not divide into ", heads, " heads");
}

inline void check_grid(const char* layer, const std::vector<std::int64_t>& grid, std::size_t axes) {
  if (grid.size() == axes) return;
  fail("attention", layer, ": grid: expected ", axes, " axes, got ", grid.size());
}

}  // namespace mhla::nn
