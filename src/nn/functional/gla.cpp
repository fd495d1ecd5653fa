// Gated linear attention: one decay per key channel.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "mhla/error.h"
#include "nn/functional/chunks.h"
#include "nn/functional/precision.h"
#include "nn/functional/recurrent.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;

constexpr double kNever = -std::numeric_limits<double>::infinity();
// Inside such a piece the decay of every pair of tokens is formed: 16 numbers per key channel.
constexpr std::int64_t kPiece = 16;

// scores_rc = sum_d q_rd k_cd exp(g_rd - g_cd) for c <= r. Taking exp(g_r) and exp(-g_c) apart
// overflows, so pairs in one piece are formed one by one, and others meet at the beginning of the
// later piece, from where both exponents are negative.
// q, k, g [..., size, Dk] -> [..., size, size]
Tensor decayed_scores(const Tensor& q, const Tensor& k, const Tensor& g, std::int64_t piece) {
  const std::int64_t size = q.size(-2), pieces = size / piece;
  const auto in_pieces = [&](const Tensor& x) { return x.unflatten(-2, {pieces, piece}); };
  const Tensor q_p = in_pieces(q), k_p = in_pieces(k), g_p = in_pieces(g);
  const at::TensorOptions truth = q.options().dtype(at::kBool);

  const Tensor later = at::ones({piece, piece}, truth).triu(1).unsqueeze(-1);
  const Tensor decay = (g_p.unsqueeze(-2) - g_p.unsqueeze(-3)).masked_fill(later, kNever).exp();
  const Tensor near = (q_p.unsqueeze(-2) * k_p.unsqueeze(-3) * decay).sum(-1);
  if (pieces == 1) return near.flatten(-3, -2);

  // g before each piece [..., pieces, 1, Dk]
  const Tensor ends = g_p.slice(-2, piece - 1);
  const Tensor start = at::cat(
      {at::zeros_like(ends.slice(-3, 0, 1)), ends.slice(-3, 0, pieces - 1)}, -3);
  const Tensor token = at::arange(size, q.options().dtype(at::kLong));
  const Tensor piece_start = at::arange(pieces, token.options()).mul(piece).unsqueeze(-1);
  const Tensor not_before = token.ge(piece_start).unsqueeze(-1);  // [pieces, size, 1]
  const Tensor k_far = k.unsqueeze(-3) *
                       (start - g.unsqueeze(-3)).masked_fill(not_before, kNever).exp();
  const Tensor far = at::matmul(q_p * (g_p - start).exp(), k_far.transpose(-2, -1));
  const Tensor own = at::eye(pieces, q.options()).view({pieces, 1, pieces, 1});
  return (far.unflatten(-1, {pieces, piece}) + near.unsqueeze(-2) * own)
      .flatten(-2)
      .flatten(-3, -2);
}

}  // namespace

OutputAndState gla(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& g_in,
                   std::optional<double> scale, const OptionalTensor& state, std::int64_t chunk) {
  const WideProducts no_autocast;
  if (chunk % kPiece != 0) {
    fail("gla", "chunk: expected a multiple of ", kPiece, " tokens, got ", chunk);
  }
  const std::int64_t piece = std::min(kPiece, q_in.sym_size(1).guard_int(__FILE__, __LINE__));
  const Chunks chunks("gla", q_in, chunk, piece);
  const Tensor q = chunks.cut(q_in) * scale_of(q_in, scale);
  const Tensor k = chunks.cut(k_in), v = chunks.cut(v_in);
  const Tensor g = at::cumsum(chunks.cut(g_in), -2);  // [B, H, count, size, Dk]
  const Tensor total = g.slice(-2, chunks.size - 1);  // [B, H, count, 1, Dk]
  const Tensor kept = k * (total - g).exp();
  const auto [before, after] = carry(at::matmul(kept.transpose(-2, -1), v),
                                     total.exp().transpose(-2, -1), state);
  const Tensor o = at::matmul(decayed_scores(q, k, g, piece), v) + at::matmul(q * g.exp(), before);
  return {chunks.join(o).to(v_in.scalar_type()), after};
}

}  // namespace mhla::nn::functional
