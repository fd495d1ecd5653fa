// The operator for LibTorch programs: differentiable, on the device of its inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "mhla/layout.h"
#include "mhla/problem.h"

namespace mhla::nn {

// Tokens of one sequence or grid and how they are cut; an empty grid is a sequence of any length.
struct Layout {
  std::vector<std::int64_t> grid = {};  // tokens per axis
  Cut cut = {};

  bool is_grid() const { return !grid.empty(); }
  // The layout of `tokens` tokens; a grid knows its own.
  BlockLayout of(std::int64_t tokens) const;
};

struct AttentionOptions {
  Layout layout;
  std::optional<Layout> layout_k = std::nullopt;  // cross-attention
  Mask mask = Mask::none;
  Normalizer normalizer = Normalizer::exact;
  FeatureMap feature_map = FeatureMap::relu_eps;
  double scale = 1.0;
  std::optional<double> eps = std::nullopt;
};

// q [B, Nq, H, dk], k [B, Nk, H, dk], v [B, Nk, H, dv], mixing [Mq, Mk] or [H, Mq, Mk]
// -> [B, Nq, H, dv]. q_den and k_den, where defined, are q and k of the denominator alone.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mixing, const AttentionOptions& options,
                     const at::Tensor& q_den = {}, const at::Tensor& k_den = {});

// The same plus a depthwise convolution of v on the grid of the layout: weight [H * dv, 1, k, k] or
// [.., k, k, k], bias [H * dv] or undefined. See ops::forward_and_local.
struct LocalWeights {
  at::Tensor weight, bias;
};
at::Tensor attention_and_local(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& mixing, const AttentionOptions& options,
                               const LocalWeights& local, const at::Tensor& q_den = {},
                               const at::Tensor& k_den = {});

at::Tensor apply_feature_map(FeatureMap map, const at::Tensor& x);

}  // namespace mhla::nn
