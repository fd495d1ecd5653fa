// What ours is compared with. The only implementation is a module loaded at run time, so that the
// program itself starts fast and runs where LibTorch is not.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mhla/mhla.h"

namespace mhla::cli {

struct Peer {
  std::string family;  // "composed", "linear", "softmax"
  std::string way;     // which of the obvious ways; of a family only the fastest counts
  double flops = 0;    // of one forward, to foresee how long it takes
  std::function<void()> forward;
  std::function<void()> forward_backward = {};
  // Computes once and writes the results; only for the family "composed".
  std::function<void(const ForwardOutputs&, const BackwardOutputs&)> evaluate = {};
};

struct PeerCase {
  Problem problem;
  ForwardInputs inputs;
  TensorView d_o;
};

class Peers {
 public:
  virtual ~Peers() = default;
  virtual std::string version() const = 0;  // "LibTorch 2.13.0"
  virtual void set_threads(int threads) = 0;
  virtual std::function<void()> gemm(std::int64_t size, DType dtype) const = 0;
  virtual std::vector<Peer> of(const PeerCase& peer_case) const = 0;
  // One token of a causal problem after `position` others; only forward.
  virtual std::vector<Peer> decode(const Problem& problem, std::int64_t position) const = 0;
};

// Throws with the way out when the module is missing or cannot be loaded.
std::unique_ptr<Peers> load_torch_peers();

}  // namespace mhla::cli

// What the module exports. Both sides come from the same build, so C++ types may pass.
extern "C" mhla::cli::Peers* mhla_bench_make_peers();
