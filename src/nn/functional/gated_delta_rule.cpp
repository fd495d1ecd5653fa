// The gated delta rule: a decaying state in which a new value replaces what its key held.
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "nn/functional/chunks.h"
#include "nn/functional/precision.h"
#include "nn/functional/recurrent.h"

namespace mhla::nn::functional {

using at::Tensor;

// Within a chunk the written values u satisfy a unit lower triangular system (WY form):
//   u_r + beta_r sum_{c<r} exp(g_r - g_c) (k_r.k_c) u_c = beta_r (v_r - exp(g_r) S^T k_r)
// It is solved once for both parts of the right side; S is only known when its chunk is reached.
OutputAndState gated_delta_rule(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                const Tensor& g_in, const Tensor& beta_in,
                                std::optional<double> scale, const OptionalTensor& state,
                                std::int64_t chunk) {
  const WideProducts no_autocast;
  const Chunks chunks("gated_delta_rule", q_in, chunk);
  const Tensor q = chunks.cut(q_in) * scale_of(q_in, scale);
  const Tensor k = chunks.cut(k_in), v = chunks.cut(v_in);
  const Tensor beta = chunks.cut_scalars(beta_in).unsqueeze(-1);
  const Tensor g = at::cumsum(chunks.cut_scalars(g_in), -1);  // [B, H, count, size]
  const Tensor grown = g.exp().unsqueeze(-1), total = g.slice(-1, chunks.size - 1);
  const Tensor mask = decay_mask(g), k_t = k.transpose(-2, -1);

  const Tensor system = (at::matmul(k * beta, k_t) * mask).tril(-1);
  const Tensor sides = at::cat({v * beta, k * (beta * grown)}, -1);
  const Tensor solved = at::linalg_solve_triangular(system, sides, /*upper=*/false, /*left=*/true,
                                                    /*unitriangular=*/true);
  const Tensor values = solved.slice(-1, 0, v.size(-1)), keys = solved.slice(-1, v.size(-1));

  const Tensor kept_t = (k * (total - g).exp().unsqueeze(-1)).transpose(-2, -1);
  const Tensor decay = total.exp().unsqueeze(-1);
  Tensor now = state ? state->to(k.scalar_type())
                     : at::zeros_symint(
                           {k.sym_size(0), k.sym_size(1), k.sym_size(-1), v.sym_size(-1)},
                           k.options());
  std::vector<Tensor> before, written;
  for (std::int64_t i = 0; i < chunks.count; ++i) {
    before.push_back(now);
    written.push_back(values.select(2, i) - at::matmul(keys.select(2, i), now));
    now = now * decay.select(2, i) + at::matmul(kept_t.select(2, i), written.back());
  }
  const Tensor o = at::matmul(q * grown, at::stack(before, 2)) +
                   at::matmul(at::matmul(q, k_t) * mask, at::stack(written, 2));
  return {chunks.join(o).to(v_in.scalar_type()), now};
}

}  // namespace mhla::nn::functional
