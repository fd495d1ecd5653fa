// The module's entry: LibTorch's threads, its gemm, and baselines made callable.
#include "torch_peers.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <memory>

namespace mhla::bench {
namespace {

std::vector<Tensor> gradients(const Attention& attention, const Operands& operands,
                              const Tensor& d_o, Tensor& o) {
  o = attention(operands);
  return torch::autograd::grad({o}, {operands.q, operands.k, operands.v, operands.mixing}, {d_o},
                               /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

class TorchPeers final : public cli::Peers {
 public:
  std::string version() const override { return std::string("LibTorch ") + TORCH_VERSION; }
  void set_threads(int threads) override { at::set_num_threads(threads); }

  std::function<void()> gemm(std::int64_t size, DType dtype) const override {
    const auto options = at::TensorOptions().dtype(scalar_type(dtype));
    const Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
    return [a, b] {
      const at::NoGradGuard no_grad;
      at::matmul(a, b);
    };
  }

  std::vector<Peer> of(const PeerCase& peer_case) const override {
    std::vector<Peer> all = composed_peers(peer_case);
    for (const auto& more : {linear_peers(peer_case), softmax_peers(peer_case)}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  std::vector<Peer> decode(const Problem& problem, std::int64_t position) const override {
    std::vector<Peer> all = composed_decode(problem);
    for (const Peer& peer : softmax_decode(problem, position)) all.push_back(peer);
    return all;
  }
};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return at::kFloat;
    case DType::f64: return at::kDouble;
    case DType::bf16: return at::kBFloat16;
    case DType::f16: return at::kHalf;
  }
  throw Error(ErrorCode::internal, "[mhla.bench] a dtype outside the enumeration");
}

Tensor tensor_of(const TensorView& view) {
  const auto rank = static_cast<std::size_t>(view.rank);
  return at::from_blob(view.data, {view.shape.data(), rank}, {view.strides.data(), rank},
                       at::TensorOptions().dtype(scalar_type(view.dtype)));
}

Tensor phi(const Tensor& x, FeatureMap map) {
  switch (map) {
    case FeatureMap::relu_eps: return at::relu(x) + kReluEps;
    case FeatureMap::relu: return at::relu(x);
    case FeatureMap::elu1: return at::elu(x) + 1;
    case FeatureMap::identity: return x;
  }
  throw Error(ErrorCode::internal, "[mhla.bench] a feature map outside the enumeration");
}

Peer make_peer(const PeerCase& peer_case, const char* family, const char* way, double flops,
               const Attention& attention) {
  const Operands plain{tensor_of(peer_case.inputs.q), tensor_of(peer_case.inputs.k),
                       tensor_of(peer_case.inputs.v), tensor_of(peer_case.inputs.mixing)};
  const auto leaf = [](const Tensor& x) { return x.detach().requires_grad_(); };
  const Operands leaves{leaf(plain.q), leaf(plain.k), leaf(plain.v), leaf(plain.mixing)};
  const Tensor d_o = tensor_of(peer_case.d_o);
  return {.family = family,
          .way = way,
          .flops = flops,
          .forward =
              [=] {
                const at::NoGradGuard no_grad;
                attention(plain);
              },
          .forward_backward =
              [=] {
                Tensor o;
                gradients(attention, leaves, d_o, o);
              },
          .evaluate =
              [=](const ForwardOutputs& outputs, const BackwardOutputs& wanted) {
                if (!wanted.d_q.defined()) {
                  const at::NoGradGuard no_grad;
                  tensor_of(outputs.o).copy_(attention(plain));
                  return;
                }
                Tensor o;
                const std::vector<Tensor> found = gradients(attention, leaves, d_o, o);
                tensor_of(outputs.o).copy_(o.detach());
                tensor_of(wanted.d_q).copy_(found[0]);
                tensor_of(wanted.d_k).copy_(found[1]);
                tensor_of(wanted.d_v).copy_(found[2]);
                tensor_of(wanted.d_mixing).copy_(found[3]);
              }};
}

}  // namespace mhla::bench

mhla::cli::Peers* mhla_bench_make_peers() { return new mhla::bench::TorchPeers; }
