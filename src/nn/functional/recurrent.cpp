// Causal attention with no decay, or one decay per head: linear, simple GLA, RetNet, Mamba2.
#include "nn/functional/recurrent.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>

#include "mhla/error.h"
#include "nn/functional/chunks.h"
#include "nn/functional/precision.h"

namespace mhla::nn::functional {

using at::Tensor;

OutputAndState causal_linear_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                       std::optional<double> scale, const OptionalTensor& state,
                                       std::int64_t chunk) {
  const WideProducts no_autocast;
  const Chunks chunks("causal_linear_attention", q_in, chunk);
  const Tensor q = chunks.cut(q_in) * scale_of(q_in, scale);
  const Tensor k = chunks.cut(k_in), v = chunks.cut(v_in);
  const Tensor k_t = k.transpose(-2, -1);
  const auto [before, after] = carry(at::matmul(k_t, v), /*decay=*/{}, state);
  const Tensor o = at::matmul(q, before) + at::matmul(at::matmul(q, k_t).tril(), v);
  return {chunks.join(o).to(q_in.scalar_type()), after};
}

OutputAndState simple_gla(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                          const Tensor& g_in, std::optional<double> scale,
                          const OptionalTensor& state, std::int64_t chunk) {
  const std::int64_t heads = v_in.size(2), groups = q_in.size(2);
  if (heads % groups != 0) {
    fail("simple_gla", "q: expected heads that divide the ", heads, " heads of v, got ", groups);
  }
  const WideProducts no_autocast;
  const auto to_heads = [&](const Tensor& x) {
    return heads == groups ? x : x.repeat_interleave(heads / groups, 1);
  };
  const Chunks chunks("simple_gla", q_in, chunk);
  const Tensor q = chunks.cut(q_in) * scale_of(q_in, scale);
  const Tensor k = chunks.cut(k_in), v = chunks.cut(v_in);
  const Tensor g = at::cumsum(chunks.cut_scalars(g_in), -1);  // [B, H, count, size]
  const Tensor total = g.slice(-1, chunks.size - 1);          // [B, H, count, 1]
  const Tensor scores = to_heads(at::matmul(q, k.transpose(-2, -1))) * decay_mask(g);
  const Tensor kept = v * (total - g).exp().unsqueeze(-1);  // what a token leaves to the next chunk
  const auto [before, after] = carry(at::matmul(to_heads(k).transpose(-2, -1), kept),
                                     total.exp().unsqueeze(-1), state);
  const Tensor o = at::matmul(scores, v) + at::matmul(to_heads(q), before) * g.exp().unsqueeze(-1);
  return {chunks.join(o).to(v_in.scalar_type()), after};
}

OutputAndState retention(const Tensor& q, const Tensor& k, const Tensor& v,
                         std::optional<double> scale, const OptionalTensor& state,
                         std::int64_t chunk) {
  const Tensor head = at::arange(q.size(2), q.options().dtype(at::kDouble));
  const Tensor log_decay = at::log1p(-at::pow(2.0, -5.0 - head)).to(wide_type(q));
  const Tensor g = log_decay.expand_symint({1, q.sym_size(1), q.sym_size(2)});
  return simple_gla(q, k, v, g, scale, state, chunk);
}

OutputAndState ssd(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b,
                   const Tensor& c, const OptionalTensor& d, const OptionalTensor& state,
                   std::int64_t chunk) {
  const Tensor step = dt.to(wide_type(x));
  const auto [read, after] = simple_gla(c, b, wide(x) * step.unsqueeze(-1), step * a.to(step),
                                        /*scale=*/1.0, state, chunk);
  const Tensor y = d ? read + wide(x) * d->to(read).unsqueeze(-1) : read;
  return {y.to(x.scalar_type()), after};
}

}  // namespace mhla::nn::functional
