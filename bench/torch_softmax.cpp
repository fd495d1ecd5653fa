// LibTorch's fused softmax attention.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

#include "torch_peers.h"

namespace mhla::bench {
namespace {

// The fused kernel wants equal widths; zeros behind q and k change no score.
Tensor widened(const Tensor& x, std::int64_t width) {
  const std::int64_t missing = width - x.size(-1);
  return missing > 0 ? at::constant_pad_nd(x, {0, missing}) : x;
}

Tensor softmax(const Problem& problem, const Operands& in) {
  const double scale = 1 / std::sqrt(static_cast<double>(problem.dk));
  const Tensor o = at::scaled_dot_product_attention(
      widened(in.q, problem.dv).transpose(1, 2), widened(in.k, problem.dv).transpose(1, 2),
      in.v.transpose(1, 2), /*attn_mask=*/{}, /*dropout_p=*/0, problem.mask == Mask::causal, scale);
  return o.transpose(1, 2).contiguous();
}

}  // namespace

std::vector<Peer> softmax_peers(const PeerCase& peer_case) {
  const Problem& problem = peer_case.problem;
  const double tokens = static_cast<double>(problem.layout.tokens());
  const double pairs = tokens * tokens / (problem.mask == Mask::causal ? 2 : 1);
  const double flops = 4.0 * static_cast<double>(problem.batch * problem.heads * problem.dv) *
                       pairs;
  Peer peer = make_peer(peer_case, "softmax", "scaled_dot_product_attention", flops,
                        [problem](const Operands& in) { return softmax(problem, in); });
  peer.evaluate = {};
  return {peer};
}

std::vector<Peer> softmax_decode(const Problem& problem, std::int64_t position) {
  constexpr double kMostBytes = 3e9;  // of keys and values
  const std::int64_t b = problem.batch, h = problem.heads, d = problem.dv;
  if (2.0 * 4 * static_cast<double>(b * h * d * position) > kMostBytes) return {};
  const at::ScalarType type = scalar_type(problem.dtype);
  const Tensor q = at::randn({b, h, 1, d}, type);
  const Tensor k = at::randn({b, h, position, d}, type), v = at::randn({b, h, position, d}, type);
  return {{.family = "softmax",
           .way = "scaled_dot_product_attention",
           .flops = 0,
           .forward =
               [=] {
                 const at::NoGradGuard no_grad;
                 at::scaled_dot_product_attention(q, k, v);
               },
           .forward_backward = {},
           .evaluate = {}}};
}

}  // namespace mhla::bench
