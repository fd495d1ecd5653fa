// Causal attention by a state that decays, one function per baseline of spec.md section 4.
// All tensors are [B, N, H, D]; the state S [B, H, Dk, Dv] is f32 (f64 for f64 inputs).
//
// Chunked: within a chunk a masked product, between chunks the state. `state` is the one before
// the first token (zeros when absent); the one after the last is returned, so that a prompt may
// come in pieces, and one token at a time is the recurrent form.
// Log decays must not be positive: every exponential taken is then at most 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace mhla::nn::functional {

using OptionalTensor = std::optional<at::Tensor>;
using OutputAndState = std::tuple<at::Tensor, at::Tensor>;

inline constexpr std::int64_t kChunk = 64;

// S_t = S_{t-1} + k_t v_t^T, o_t = scale q_t^T S_t; scale is Dk^-1/2 when absent.
OutputAndState causal_linear_attention(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v,
                                       std::optional<double> scale = std::nullopt,
                                       const OptionalTensor& state = std::nullopt,
                                       std::int64_t chunk = kChunk);

// S_t = exp(g_t) S_{t-1} + k_t v_t^T; g [B, N, H] (or [1, N, H]): one log decay per head.
// The heads of q and k may be fewer: each serves a group of heads of v.
OutputAndState simple_gla(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& g, std::optional<double> scale = std::nullopt,
                          const OptionalTensor& state = std::nullopt, std::int64_t chunk = kChunk);

// RetNet: the decay of head h is 1 - 2^(-5-h).
OutputAndState retention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         std::optional<double> scale = std::nullopt,
                         const OptionalTensor& state = std::nullopt, std::int64_t chunk = kChunk);

// Mamba2: h_t = exp(a dt_t) h_{t-1} + B_t (dt_t x_t)^T, y_t = C_t^T h_t + d x_t.
// x [B, N, H, P], dt [B, N, H] after softplus, a [H] negative, b, c [B, N, G, S], d [H];
// the state is [B, H, S, P].
OutputAndState ssd(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& a,
                   const at::Tensor& b, const at::Tensor& c, const OptionalTensor& d = std::nullopt,
                   const OptionalTensor& state = std::nullopt, std::int64_t chunk = kChunk);

// S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T; g [B, N, H, Dk]: one log decay per key channel.
OutputAndState gla(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& g, std::optional<double> scale = std::nullopt,
                   const OptionalTensor& state = std::nullopt, std::int64_t chunk = kChunk);

// S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T; g, beta [B, N, H].
OutputAndState gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& g, const at::Tensor& beta,
                                std::optional<double> scale = std::nullopt,
                                const OptionalTensor& state = std::nullopt,
                                std::int64_t chunk = kChunk);

}  // namespace mhla::nn::functional
