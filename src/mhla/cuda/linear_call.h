// One call of the linear form: arguments that stay the same, and the launches in order.
#pragma once

#include <algorithm>

#include "mhla/cuda/arguments.h"
#include "mhla/cuda/linear_plan.h"

namespace mhla::cuda {

// What a plan keeps.
struct LinearPrepared {
  LinearPlan plan;
  LinearTables tables;
  bool overlap;  // the device sets up a kernel while the previous one ends
};

class LinearCall {
 public:
  LinearCall(const PlanData& data, const Workspace& workspace, Stream stream, bool backward);

  LinearArgs& args() { return args_; }
  // The Hopper kernels work on these tensors if they can. NOTE: their backward makes denominators
  // of shared_position, and has no rows whose factors come from elsewhere.
  void try_tiles(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
    use_tiles_ = tiles_.take(inputs, outputs);
  }
  void try_tiles(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
    use_tiles_ = (!plan_.given || shares_rows()) && tiles_.take(inputs, outputs);
  }

  // The causal backward in one kernel, where there is one for these tensors.
  bool run_causal(const BackwardInputs& inputs, const BackwardOutputs& outputs);

  void prepare_weights(const TensorView& mixing);

  // Calls f with the pairs of each group in turn.
  template <typename F>
  void for_each_group(F&& f) {
    group_ = 0;
    for (std::int64_t b = 0; b < problem_.batch; b += plan_.group_batch) {
      for (std::int64_t h = 0; h < problem_.heads; h += plan_.group_heads, ++group_) {
        args_.batch_first = static_cast<int>(b);
        args_.head_first = static_cast<int>(h);
        args_.heads = static_cast<int>(
            std::min<std::int64_t>(plan_.group_heads, problem_.heads - h));
        batch_ = std::min<std::int64_t>(plan_.group_batch, problem_.batch - b);
        batch_group_ = b / plan_.group_batch;
        f();
      }
    }
  }

  // S, z, S~ and z~ of a group; denominators where they have kernels of their own.
  void summarize(bool backward = false);

  void read_out();

  void go_back(bool weights);

  void reduce_weights(const TensorView& d_mixing);

 private:
  template <typename Args>
  void start(Kernel<Args> kernel, const Grid& grid, int threads, int bytes, Stream stream,
             const Args& args) {
    launch(kernel, grid, threads, bytes, stream, args, overlap_);
  }
  void* at(std::size_t offset) const { return base_ + offset; }
  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(base_ + offset); }
  std::int64_t pairs() const { return batch_ * args_.heads; }
  sm90::TileGroup tile_group() const {
    return {.batch_first = args_.batch_first,
            .batch = static_cast<int>(batch_),
            .head_first = args_.head_first,
            .heads = args_.heads};
  }
  // The denominators of shared_position have kernels for Hopper.
  bool shares_rows() const { return plan_.shared && !plan_.separate; }
  sm90::TileRows tile_rows() const;
  std::int64_t weights_stride() const {
    return plan_.matrices > 1 ? static_cast<std::int64_t>(plan_.rows_padded) * plan_.cols_padded
                              : 0;
  }
  std::int64_t partial_stride() const {
    return static_cast<std::int64_t>(plan_.matrices) * plan_.gradient_rows * plan_.gradient_cols;
  }

  void by_block(const LinearKernel& kernel, LinearArgs args, int blocks, int tiles);
  void by_row_kernel(Kernel<LinearArgs> kernel, int blocks);

  MixArgs mix_args(bool transposed, std::size_t in, std::size_t out, int entries) const;
  void mix(bool transposed, std::size_t in, std::size_t out);
  void mix_slabs(bool transposed, std::size_t in, std::size_t out);
  void mix_resident(bool transposed, MixArgs args);
  PairMixArgs pair_mix_args(bool weights) const;
  void mix_pair(bool weights);
  void mix_vectors(bool transposed, std::size_t in, std::size_t out, int entries);

  void weight_gradient();

  const Problem& problem_;
  const LinearPlan& plan_;
  const LinearTables& tables_;
  const LinearWorkspace at_;
  const bool overlap_;
  unsigned char* base_;
  Stream stream_;
  LinearArgs args_{};
  TensorView mixing_;
  sm90::TileCall tiles_;
  bool use_tiles_ = false;
  int sums_ = 0;  // partial sums of the weights' gradient that the one causal kernel left
  std::int64_t group_ = 0, batch_group_ = 0, batch_ = 0;
};

}  // namespace mhla::cuda
