// What stands around attention: rotary positions, short convolutions, norms and gates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace mhla::nn::functional {

using OptionalTensor = std::optional<at::Tensor>;

// GPT-NeoX: channel j turns with channel j + D/2 by position * base^(-2j/D).
// x [B, N, H, D]; offset: the position of the first token, an integer tensor of one element.
at::Tensor rotary(const at::Tensor& x, double base = 10000.0,
                  const OptionalTensor& offset = std::nullopt);

// RALA and MALA: neighbouring channels turn together; half of the pairs by the row, half by the
// column, by angles 10000^(-j/(n-1)), n = D/4. x [B, height * width, H, D].
at::Tensor rotary_grid(const at::Tensor& x, at::IntArrayRef grid);

// Wan: neighbouring channels turn together; the pairs are divided among the axes, and the first
// axis gets what is left over. x [B, N, H, D], N = product of the grid.
at::Tensor rotary_axes(const at::Tensor& x, at::IntArrayRef grid, double base = 10000.0);

// Causal depthwise convolution along the tokens, then SiLU.
// x [B, N, C], weight [C, 1, K], bias [C], state [B, C, K-1]: the inputs before x -> y, new state.
std::tuple<at::Tensor, at::Tensor> short_convolution(const at::Tensor& x, const at::Tensor& weight,
                                                     const OptionalTensor& bias = std::nullopt,
                                                     const OptionalTensor& state = std::nullopt);

// x / sqrt(sum x^2 + eps) over the last dimension.
at::Tensor unit_norm(const at::Tensor& x, double eps = 1e-6);

// RMSNorm over the last dimension, times SiLU(gate). o, gate [B, N, H, D], weight [D].
at::Tensor gated_head_norm(const at::Tensor& o, const OptionalTensor& gate,
                           const at::Tensor& weight, double eps = 1e-6);

// Mamba2: RMSNorm(y * SiLU(z)) over the last dimension. y, z [B, N, C], weight [C].
at::Tensor gate_then_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                          double eps = 1e-5);

// Depthwise convolution of v [B, N, H, D] on its token grid (two or three axes), zero padding.
// weight [H*D, 1, k, k], or [D, 1, k, k] shared by all heads. addend [B, N, H, D] is added to it.
at::Tensor grid_convolution(const at::Tensor& v, at::IntArrayRef grid, const at::Tensor& weight,
                            const OptionalTensor& bias = std::nullopt,
                            const OptionalTensor& addend = std::nullopt);

}  // namespace mhla::nn::functional
