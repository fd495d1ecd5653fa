// Layers that several networks share. Their weights are filled by the network's init.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/cost.h"
#include "nn/modules/layers.h"

namespace mhla::models {

using nn::Linear;
using nn::make_linear;

// A new parameter on the device that the model is made on.
at::Tensor new_parameter(std::vector<std::int64_t> shape);

class LayerNormLayer : public torch::nn::Module {
 public:
  LayerNormLayer(std::int64_t width, double eps, bool affine);
  at::Tensor forward(const at::Tensor& x) const { return nn::functional::normed(x, norm()); }
  nn::functional::Norm norm() const { return {.weight = weight, .bias = bias, .eps = eps_}; }

  at::Tensor weight, bias;  // undefined without affine

 private:
  double eps_;
};
using LayerNorm = std::shared_ptr<LayerNormLayer>;

// A convolution of 2 or 3 axes with its padding.
struct ConvShape {
  std::int64_t in = 0, out = 0;
  std::vector<std::int64_t> kernel;
  std::vector<std::int64_t> stride = {};   // empty: 1
  std::vector<std::int64_t> padding = {};  // empty: 0
  std::int64_t groups = 1;
  bool bias = true;
};
class ConvLayer : public torch::nn::Module {
 public:
  explicit ConvLayer(const ConvShape& shape);
  at::Tensor forward(const at::Tensor& x) const;  // [B, C, ...]
  const ConvShape& shape() const { return shape_; }

  at::Tensor weight, bias;

 private:
  ConvShape shape_;
};
using Conv = std::shared_ptr<ConvLayer>;
Conv make_conv(const ConvShape& shape);
// size x size, keeps the grid
Conv make_depthwise(std::int64_t channels, std::int64_t size);

enum class Gelu { exact, tanh };

// `fc1`, GELU, `fc2`
class MlpLayer : public torch::nn::Module {
 public:
  MlpLayer(std::int64_t width, std::int64_t hidden, std::int64_t out, Gelu gelu);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  Linear fc1_, fc2_;
  Gelu gelu_;
};
using Mlp = std::shared_ptr<MlpLayer>;

// A table of vectors: `weight` [rows, width].
class TableLayer : public torch::nn::Module {
 public:
  TableLayer(std::int64_t rows, std::int64_t width);
  at::Tensor forward(const at::Tensor& index) const;
  at::Tensor weight;
};
using Table = std::shared_ptr<TableLayer>;

at::Tensor gelu(const at::Tensor& x, Gelu kind);

// Drops the whole branch of a sample with probability `rate` while training.
at::Tensor drop_path(const at::Tensor& branch, double rate, bool training);

// GELU of a linear layer: in its product on a GPU, where that has the same formula.
at::Tensor linear_gelu(const Linear& layer, const at::Tensor& x, Gelu kind);

// A convolution that cuts a picture or video into patches, as the product it is.
// [B, channels, ...] -> [B, N, C], tokens in the order of the grid; what fills no patch is left out
at::Tensor patch_tokens(const ConvLayer& patches, const at::Tensor& x);
// A 1x1 convolution on tokens [B, N, C].
at::Tensor pointwise(const ConvLayer& layer, const at::Tensor& x);
// [B, N, C] <-> [B, C, grid]
at::Tensor to_grid(const at::Tensor& tokens, at::IntArrayRef grid);
at::Tensor to_tokens(const at::Tensor& picture);

void count_mlp(CostSheet& sheet, double rows, double width, double hidden);

}  // namespace mhla::models
