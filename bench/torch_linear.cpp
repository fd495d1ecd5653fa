// Global linear attention: one summary for all tokens, what MHLA has to be no slower than.
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros_like.h>

#include "torch_peers.h"

namespace mhla::bench {
namespace {

Tensor bidirectional(const Problem& problem, const Operands& in) {
  const Tensor q = phi(in.q, problem.feature_map).transpose(1, 2);  // [B, H, N, D]
  const Tensor k = phi(in.k, problem.feature_map).transpose(1, 2);
  const Tensor v = in.v.transpose(1, 2);
  const Tensor num = at::matmul(q, at::matmul(k.transpose(-1, -2), v));
  if (problem.normalizer == Normalizer::none) return num.transpose(1, 2).contiguous();
  const Tensor den = at::matmul(q, k.sum(-2).unsqueeze(-1));
  return (num / den).transpose(1, 2).contiguous();
}

// Chunk by chunk: the running sum of earlier chunks, and a triangle of scores inside.
Tensor causal(const Problem& problem, const Operands& in) {
  const std::int64_t chunk = problem.layout.max_block_tokens();
  const auto chunks = [&](const Tensor& x) {  // [B, H, M, C, D]
    return x.view({x.size(0), x.size(1) / chunk, chunk, x.size(2), x.size(3)})
        .permute({0, 3, 1, 2, 4});
  };
  const Tensor q = phi(chunks(in.q), problem.feature_map) * problem.scale;
  const Tensor k = phi(chunks(in.k), problem.feature_map);
  const Tensor v = chunks(in.v).contiguous();
  const Tensor s = at::matmul(k.transpose(-1, -2), v);
  const Tensor before = at::cumsum(s, 2) - s;
  const Tensor inside = at::matmul(q, k.transpose(-1, -2)).tril();
  const Tensor o = at::matmul(q, before) + at::matmul(inside, v);
  return o.permute({0, 2, 3, 1, 4})
      .reshape({in.v.size(0), in.v.size(1), in.v.size(2), in.v.size(3)});
}

}  // namespace

std::vector<Peer> linear_peers(const PeerCase& peer_case) {
  const Problem& problem = peer_case.problem;
  const double flops = 4.0 * static_cast<double>(problem.batch * problem.heads) *
                       static_cast<double>(problem.layout.tokens() * problem.dk * problem.dv);
  Peer peer = make_peer(peer_case, "linear", "matmul", flops, [problem](const Operands& in) {
    return problem.mask == Mask::none ? bidirectional(problem, in) : causal(problem, in);
  });
  peer.evaluate = {};  // another operator: nothing of ours to compare it with
  return {peer};
}

}  // namespace mhla::bench
