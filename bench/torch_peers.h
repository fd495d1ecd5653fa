// Inside the LibTorch module: operands, and one function for each family of baselines.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "cli/bench_peers.h"

namespace mhla::bench {

using at::Tensor;
using cli::Peer;
using cli::PeerCase;

// The inputs of a case, without a copy.
struct Operands {
  Tensor q, k, v;  // [B, N, H, D]
  Tensor mixing;   // f32 [M, M]
};

using Attention = std::function<Tensor(const Operands&)>;  // [B, N, H, dv]

at::ScalarType scalar_type(DType dtype);
Tensor tensor_of(const TensorView& view);  // shares memory
Tensor phi(const Tensor& x, FeatureMap map);

// A baseline out of a function: without autograd, with it, and written out where that is asked for.
Peer make_peer(const PeerCase& peer_case, const char* family, const char* way, double flops,
               const Attention& attention);

std::vector<Peer> composed_peers(const PeerCase& peer_case);
std::vector<Peer> linear_peers(const PeerCase& peer_case);
std::vector<Peer> softmax_peers(const PeerCase& peer_case);

std::vector<Peer> composed_decode(const Problem& problem);
std::vector<Peer> softmax_decode(const Problem& problem, std::int64_t position);

}  // namespace mhla::bench
