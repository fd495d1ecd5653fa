// Host side of the short forward: whom it serves, and what depends on the problem only.
#include "mhla/cuda/sm90/dense_short.h"

#include <algorithm>
#include <vector>

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/shared_rows.h"
#include "mhla/cuda/sm90/tensor_map.h"
#include "mhla/error.h"

namespace mhla::cuda::sm90 {
namespace {

// Whether neighbouring keys 2 i and 2 i + 1 are always of one block.
bool in_pairs(const BlockLayout& keys) {
  std::vector<std::int64_t> of(static_cast<std::size_t>(keys.tokens()));
  for (const Block& block : keys.blocks()) {
    for (std::int64_t p = 0; p < block.tokens(); ++p) of[block.token(p)] = block.index;
  }
  for (std::size_t i = 0; i < of.size(); i += 2) {
    if (i + 1 == of.size() || of[i] != of[i + 1]) return false;
  }
  return true;
}

bool describe(CUtensorMap (&maps)[2], const TensorView& view, int width, int tokens) {
  return make_tensor_map(maps[0], view, main_columns(width), tokens) &&
         (rest_columns(width) == 0 || make_tensor_map(maps[1], view, rest_columns(width), tokens));
}

}  // namespace

int short_width(const Problem& problem) {
  const std::int64_t queries = problem.layout.tokens(), keys = problem.keys().tokens();
  const bool fits = problem.layout.sequences().size() == 1 && queries > 0 &&
                    queries <= kShortQueries && keys > kHalf && keys <= kShortKeys &&
                    problem.layout.mixing_size() <= kShortBlocks;
  if (!fits || problem.mixing_per_head || problem.mask == Mask::causal) return 0;
  const std::int64_t width = std::max(problem.dk, problem.dv);
  for (const int compiled : {32, 64, 72, 96}) {
    if (width <= compiled) return compiled;
  }
  return 0;
}

bool short_makes_factors(const Problem& problem, int processors) {
  const int width = short_width(problem);
  const std::int64_t positions = shared_rows_positions(problem);
  const std::int64_t blocks = problem.layout.mixing_size();
  return (width == 64 || width == 72) && problem.layout.tokens() <= kShortSharedQueries &&
         blocks * (positions + 8) <= kShortProducts && positions <= 256 &&
         problem.batch * problem.heads >= processors;  // otherwise heads are split
}

ShortArgs short_args(const Problem& problem, int processors) {
  ShortArgs args{};
  args.queries = static_cast<int>(problem.layout.tokens());
  args.keys = static_cast<int>(problem.keys().tokens());
  args.pairs = in_pairs(problem.keys());
  // A thread block takes all rows of a head, unless that idles the chip; two warpgroups compute.
  const std::int64_t heads = problem.batch * problem.heads;
  args.split_rows = heads >= processors ? args.queries : 2 * kTile;
  args.splits = (args.queries + args.split_rows - 1) / args.split_rows;
  args.items = static_cast<int>(heads * args.splits);
  args.grid = std::min(args.items, processors);
  const int pairs_step = args.grid / args.splits;
  const int every = std::max(static_cast<int>(problem.heads), 1);
  args.split_step = args.grid % args.splits;
  args.batch_step = pairs_step / every;
  args.head_step = pairs_step % every;
  return args;
}

bool short_tensors(ShortArgs& args, int width, const ForwardInputs& inputs, const TensorView& o) {
  return describe(args.maps[0], inputs.q, width, kTile) &&
         describe(args.maps[1], inputs.k, width, kHalf) &&
         describe(args.maps[2], inputs.v, width, kHalf) && describe(args.maps[3], o, width, 16);
}

void launch_dense_short(DType dtype, int width, const ShortArgs& args, void* stream) {
  if (dtype == DType::bf16) return launch_short<bf16>(width, args, stream);
  if (dtype == DType::f16) return launch_short<f16>(width, args, stream);
  fail(ErrorCode::internal, "cuda.dense", "no short kernel for ", name(dtype));
}

}  // namespace mhla::cuda::sm90
