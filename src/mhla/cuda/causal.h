// What the causal implementations for Hopper share, and what they offer to "cuda.linear".
#pragma once

#include <memory>

#include "mhla/core/implementation.h"
#include "mhla/cuda/sm80/linear_args.h"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

// Tiles of 64 tokens of a block, or 0 where blocks are not made of whole tiles in their order.
std::int64_t block_tiles(const BlockLayout& layout);

// What goes backward where "cuda.causal" or "cuda.columns" went forward, and forward for tensors
// that their kernels cannot read: "cuda.linear" or, short sequences, "cuda.dense".
const Implementation& beside_causal(const Problem& problem);

// What both implementations have prepared, and their backward.
struct CausalPrepared {
  int processors = 1;
  PlanData other;  // the plan of beside_causal()
};
std::shared_ptr<const void> prepare_causal(const Problem& problem);
std::size_t causal_backward_workspace(const Problem& problem, const PlanOptions& options);
void backward_beside_causal(const PlanData& data, const BackwardInputs& inputs,
                            const BackwardOutputs& outputs, const Workspace& workspace,
                            Stream stream);

// The numbers of Args that weigh scores: feature map, scale and mixing matrix.
template <typename Args>
void set_weights(Args& args, const Problem& problem, const TensorView& mixing) {
  args.feature = static_cast<decltype(args.feature)>(problem.feature_map);
  args.scale = static_cast<float>(problem.scale);
  args.mixing = static_cast<const float*>(mixing.data);
  args.mixing_head_stride = problem.mixing_per_head ? mixing.strides[0] : 0;
  args.mixing_row_stride = mixing.strides[mixing.rank - 2];
  args.mixing_column_stride = mixing.strides[mixing.rank - 1];
}

// The causal backward without a normaliser in one kernel for Hopper.
class CausalBackward {
 public:
  struct Summaries {
    void *first, *second;  // S and dS~, then S~ and dS: [slot][block][dv tile][128][128]
    int slots;             // pairs that they hold at once
    int dk, dv_tile;       // as the layout has them
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
};

}  // namespace mhla::cuda
