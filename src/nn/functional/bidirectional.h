// Attention in which every token sees every token, one function per baseline of spec.md section 4.
// All tensors are [B, N, H, D] in natural order; D is the size of a head, s = D^-1/2.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace mhla::nn::functional {

using OptionalTensor = std::optional<at::Tensor>;

// o_i = sum_j softmax_j(s q_i.k_j) v_j. With `causal`, the last query sees all keys, so that a
// cache of earlier keys may be longer than the queries.
at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             bool causal = false, std::optional<double> scale = std::nullopt);

// o_i = q_i^T (sum k v^T) / (q_i . sum k + eps), after the feature map (relu, relu_eps, elu1,
// identity). q_den, k_den: what the denominator uses instead, features already applied.
at::Tensor linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            c10::string_view feature_map = "relu", double eps = 1e-6,
                            const OptionalTensor& q_den = std::nullopt,
                            const OptionalTensor& k_den = std::nullopt);

// FLatten: q and k are sharpened over their full width H*D before the heads part.
// scale [1, 1, H*D]: learned, passed through softplus.
at::Tensor focused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& scale, double power = 3.0, double eps = 1e-6);

// InLine: o_i = (s/N) q_i^T sum k v^T + (1 - s q_i.mean(k)) mean(v); rows of the attention sum
// to 1.
at::Tensor inline_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Rank-augmented: keys weighted by their softmax score with the mean query, ELU + 1, rotary
// numerator (no rotation where the grid is empty).
at::Tensor rala(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef grid,
                double eps = 1e-6);

// Magnitude-aware: o_i = (1 + 1/(z_i + eps)) q_i^T (s/N) sum k v^T - z_i mean(v), z_i = s
// q_i.mean(k)
at::Tensor mala(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef grid,
                double eps = 1e-6);

}  // namespace mhla::nn::functional
