// The registered operators, called through LibTorch's dispatcher: `torch.ops.mhla.*`.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "nn/planning.h"

namespace mhla::nn::ops {

using OptionalTensor = std::optional<at::Tensor>;
// d_q, d_k, d_v, d_mixing, d_q_den, d_k_den
using Gradients =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// q, k [B, N, H, dk], v [B, N, H, dv], mixing [Mq, Mk] or [H, Mq, Mk] -> o [B, Nq, H, dv].
// What `sizes` and `options` mean: nn/planning.h.
at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mixing, const OptionalTensor& q_den,
                   const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                   c10::SymIntArrayRef sizes_k, c10::string_view options);

// Gradients that are not wanted come back undefined, as those of LibTorch's own operators do.
Gradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& mixing, const at::Tensor& o,
                   const OptionalTensor& q_den, const OptionalTensor& k_den,
                   c10::SymIntArrayRef sizes, c10::SymIntArrayRef sizes_k, c10::string_view options,
                   std::array<bool, 6> wanted);

// forward of one grid (`sizes`) plus a depthwise convolution of v on it; weight [H * dv, 1, k, k]
// or
// [.., k, k, k]. By one kernel where the planned implementation adds it (Plan::adds_local), no
// gradient is recorded and the weights have the type of v; by two otherwise.
at::Tensor forward_and_local(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& mixing, const OptionalTensor& q_den,
                             const OptionalTensor& k_den, at::IntArrayRef sizes,
                             c10::string_view options, const at::Tensor& weight,
                             const OptionalTensor& bias);

// Not registered: the one kernel of it, or nothing where there is none. No gradients.
OptionalTensor forward_with_local(const Tensors& tensors, const Description& description,
                                  const at::Tensor& weight, const at::Tensor& bias);

}  // namespace mhla::nn::ops
