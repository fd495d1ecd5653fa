// What the causal kernels for Hopper offer to "cuda.linear", and their idea of a layout.
#pragma once

#include <memory>

#include "mhla/core/implementation.h"
#include "mhla/cuda/sm80/linear_args.h"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

// Tiles of 64 tokens of a block, or 0 where blocks are not made of whole tiles in their order.
std::int64_t block_tiles(const BlockLayout& layout);

// The causal backward without a normaliser in one kernel for Hopper.
class CausalBackward {
 public:
  struct Summaries {
    void *first, *second;  // S and dS~, then S~ and dS: [slot][block][dv tile][128][128]
    int slots;             // pairs that they hold at once
    int dk, dv_tile;       // as the layout has them
    bool in_registers;     // how they are mixed: see sm90/causal_mix.cuh
  };
  // Serves nothing where the problem, the device or a tensor is not one for the kernel.
  CausalBackward(const Problem& problem, const BackwardInputs& inputs,
                 const BackwardOutputs& outputs, const Summaries& summaries);
  // All pairs, with one counter for each of three steps of a pair. Returns how many partial sums of
  // d_m it leaves; 0 when it does not serve the problem.
  int run(const LinearArgs& args, const PairMixArgs& mixing, unsigned* counters,
          Stream stream) const;

 private:
  std::shared_ptr<void> args_;  // of the kernel
  std::int64_t pairs_ = 0;
  bool in_registers_ = false;
};

}  // namespace mhla::cuda
