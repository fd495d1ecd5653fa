// Host side of the causal backward on Hopper.
#include "mhla/cuda/causal.h"

#include <algorithm>

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/causal_backward.h"
#include "mhla/cuda/sm90/tensor_map.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

// Of the multiprocessors, those that make summaries and those that mix; the others make gradients.
// The best of the splits tried on an H200, which has 132.
constexpr int kShares = 132, kSummaryShare = 38, kMixingShare = 48;

// S~ or dS of all pairs as one matrix.
TensorView matrix_view(void* data, std::int64_t rows, std::int64_t columns) {
  TensorView view;
  view.data = data;
  view.dtype = DType::bf16;
  view.rank = 4;
  const std::int64_t shape[] = {1, rows, 1, columns};
  const std::int64_t strides[] = {rows * columns, columns, columns, 1};
  for (int axis = 0; axis < 4; ++axis) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = strides[axis];
  }
  return view;
}

}  // namespace

std::int64_t block_tiles(const BlockLayout& layout) {
  if (layout.sequences().size() != 1 || layout.axes() != 1 || layout.blocks().empty()) return 0;
  const std::int64_t tokens = layout.blocks().front().tokens();
  if (layout.blocks().size() == 1) return (tokens + kTile - 1) / kTile;
  if (tokens % kTile != 0) return 0;
  const std::int64_t last = static_cast<std::int64_t>(layout.blocks().size()) - 1;
  for (const Block& block : layout.blocks()) {
    const bool whole = block.tokens() == tokens || (block.index == last && block.tokens() < tokens);
    if (!whole || block.first != block.index * tokens) return 0;
  }
  return tokens / kTile;
}

CausalBackward::CausalBackward(const Problem& problem, const BackwardInputs& inputs,
                               const BackwardOutputs& outputs, const Summaries& summaries)
    : pairs_(problem.batch * problem.heads) {
  const std::int64_t dv_tiles = (problem.dv + kGradientWidth - 1) / kGradientWidth;
  const int blocks = static_cast<int>(problem.layout.blocks().size());
  const std::int64_t rows = static_cast<std::int64_t>(summaries.slots) * blocks * kSummaryWidth;
  const bool served = problem.dtype == DType::bf16 && problem.dk == kGradientWidth &&
                      summaries.dk == kGradientWidth && summaries.dv_tile == kGradientWidth &&
                      dv_tiles * kGradientWidth == kSummaryWidth && blocks > 1 && pairs_ > 0 &&
                      pairs_ * blocks < 0x3fffffff && rows < 0x7fffffff &&
                      !problem.mixing_per_head && block_tiles(problem.layout) == 1 &&
                      outputs.d_q.defined() && outputs.d_k.defined() && outputs.d_v.defined() &&
                      code_version(problem.device.index) == 90;
  if (!served) return;
  auto args = std::make_shared<CausalChainArgs>();
  CausalSummaryArgs& first = args->summaries;
  CausalGradientArgs& last = args->gradients;
  constexpr int kStored = 16;  // rows of a warp
  const auto tokens = [](CUtensorMap& map, const TensorView& view) {
    return make_tensor_map(map, view, 64, kTile);
  };
  const auto matrix = [&](CUtensorMap& map, void* data, int height) {
    return make_tensor_map(map, matrix_view(data, rows, kGradientWidth), 64, height);
  };
  const bool mapped = tokens(first.x[0], inputs.k) && tokens(first.x[1], inputs.q) &&
                      tokens(first.y[0], inputs.v) && tokens(first.y[1], inputs.d_o) &&
                      matrix(first.out[0], summaries.first, kTile) &&
                      matrix(first.out[1], summaries.second, kTile) && tokens(last.q, inputs.q) &&
                      tokens(last.k, inputs.k) && tokens(last.v, inputs.v) &&
                      tokens(last.d_o, inputs.d_o) &&
                      make_tensor_map(last.d_q, outputs.d_q, 32, kStored) &&
                      make_tensor_map(last.d_k, outputs.d_k, 32, kStored) &&
                      make_tensor_map(last.d_v, outputs.d_v, 64, kStored) &&
                      matrix(last.mixed, summaries.first, kGradientWidth) &&
                      matrix(last.gradient, summaries.second, kGradientWidth);
  if (!mapped) return;
  first.items = static_cast<int>(pairs_) * 2 * (blocks - 1);
  last.items = static_cast<int>(pairs_) * blocks;
  last.columns = static_cast<int>((problem.dv + kGradientColumns - 1) / kGradientColumns);
  const auto fill = [&](auto& step) {
    step.blocks = blocks;
    step.slots = summaries.slots;
    step.heads = static_cast<int>(problem.heads);
    step.feature = static_cast<Feature>(problem.feature_map);
    step.scale = static_cast<float>(problem.scale);
  };
  fill(first);
  fill(last);

  const int processors = multiprocessors(problem.device.index);
  args->summary_blocks = processors * kSummaryShare / kShares;
  args->mixing_blocks = processors * kMixingShare / kShares;
  args->gradient_blocks = processors - args->summary_blocks - args->mixing_blocks;
  if (args->summary_blocks > 0) args_ = std::move(args);
}

int CausalBackward::run(const LinearArgs& linear, const PairMixArgs& mixing, unsigned* counters,
                        Stream stream) const {
  if (!args_) return 0;
  CausalChainArgs args = *static_cast<const CausalChainArgs*>(args_.get());
  // Pairs that must find room at once, or the steps would wait for one another: mixing warps wait
  // for a tile three tiles after the first that they have not reported, and a thread block's next
  // summary may be of a later pair.
  const auto parts = [](int n, int of) { return (n + of - 1) / of; };
  const int needed = 4 + parts(3 * 8 * args.mixing_blocks, mixing.entries / 64) +
                     parts(args.summary_blocks, 2 * (mixing.blocks - 1));
  if (mixing.slots < std::min<std::int64_t>(needed, pairs_)) return 0;
  args.mixing = mixing;
  args.mixing.pairs = static_cast<int>(pairs_);
  args.gradients.diagonal = linear.diagonal;
  args.gradients.terms = linear.diagonal_terms;
  args.made = counters;
  args.mixed = counters + pairs_;
  args.read = counters + 2 * pairs_;
  check_call(cudaMemsetAsync(counters, 0, 3 * static_cast<std::size_t>(pairs_) * sizeof(unsigned),
                             static_cast<cudaStream_t>(stream)),
             "cudaMemsetAsync");
  launch_causal_chain(args, stream);
  return args.mixing_blocks;
}

}  // namespace mhla::cuda
