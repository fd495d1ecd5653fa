// Norms with the sums and factors around them: one kernel on a GPU, with gradients; LibTorch's
// operations elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "mhla/problem.h"

namespace mhla::nn::functional {

using OptionalTensor = std::optional<at::Tensor>;

// LayerNorm or RMSNorm over the last dimension.
struct Norm {
  at::Tensor weight = {}, bias = {};  // [C], or undefined
  double eps = 1e-6;
  bool rms = false;
};

// sum = x + gate * branch, normed = norm(sum) * (1 + scale) + shift.
// x, branch [B, N, C], gate, shift, scale [B, C]; what is undefined is left out.
struct ResidualNorm {
  at::Tensor x, branch = {}, gate = {};
  at::Tensor shift = {}, scale = {};  // both or none
  // A second LayerNorm of the result.
  std::optional<Norm> then = std::nullopt;
};
struct SumAndNormed {
  at::Tensor sum, normed;
};
SumAndNormed residual_norm(const ResidualNorm& call, const Norm& norm);

// What PyTorch's RMSNorm takes where no eps is given: that of the type it computes in.
inline double unsaid_eps(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble
             ? std::numeric_limits<double>::epsilon()
             : static_cast<double>(std::numeric_limits<float>::epsilon());
}

// x normed, without anything around it. x [..., C]
at::Tensor normed(const at::Tensor& x, const Norm& norm);

// The norm of x [B, N, H * D], by heads, through the feature map (`plain`) and turned by the axes
// of the grid (see rotary_axes). With gradients each step is an operation of its own.
struct TurnedAndPlain {
  at::Tensor turned, plain;  // [B, N, H, D]
};
struct HeadTurn {
  std::int64_t heads = 1;
  at::IntArrayRef grid;
  FeatureMap map = FeatureMap::identity;
  bool plain = false;  // whether it is wanted
};
TurnedAndPlain normed_and_turned(const at::Tensor& x, const Norm& norm, const HeadTurn& turn);

// One kernel, or nothing where it cannot be used: with gradients, on other devices, while a
// compiler traces. cos, sin f32 [N, D / 2].
std::optional<TurnedAndPlain> turn_normed_by_kernel(const at::Tensor& x, const Norm& norm,
                                                    const HeadTurn& turn, const at::Tensor& cos,
                                                    const at::Tensor& sin);

// Focused linear attention: |p| p^power / |p^power|, p = (relu(x) + 1e-6) / softplus(scale), in f32
// over the full width: the direction sharpens, the length stays. x [B, N, H, D], scale [1, 1, H *
// D]
at::Tensor focused(const at::Tensor& x, const at::Tensor& scale, double power = 3.0);

}  // namespace mhla::nn::functional
