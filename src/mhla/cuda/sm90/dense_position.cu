// Host side of the forward by positions: whom it serves, and its tensor maps.
#include "mhla/cuda/sm90/dense_position.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/tensor_map.h"
#include "mhla/error.h"

namespace mhla::cuda::sm90 {
namespace {

// The tensor as the axes of PositionSteps; box: positions that a copy takes.
bool describe(CUtensorMap& map, PositionSteps& steps, const PositionArgs& args,
              const TensorView& view, int box) {
  const std::int64_t batch = view.shape[0], heads = view.shape[2];
  const std::int64_t token = view.strides[1];
  const std::int64_t line = token * args.across * args.block_width;
  const std::int64_t picture = batch > 1 ? view.strides[0] : 0;
  const std::int64_t head = heads > 1 ? view.strides[2] : 0;
  // One step divides all three distances.
  const std::int64_t unit = std::gcd(std::gcd(line, picture), head);
  if (unit <= 0 || token <= 0 || picture < 0 || head < 0) return false;
  const std::int64_t last = (line * (args.block_height - 1) + picture * (batch - 1) +
                             head * (heads - 1)) /
                            unit;
  if (last >= std::numeric_limits<int>::max()) return false;
  steps = {static_cast<int>(head / unit), static_cast<int>(picture / unit),
           static_cast<int>(line / unit)};
  return make_slice_map(
      map, {.data = view.data,
            .extents = {view.shape[3], args.across, args.down, args.block_width, last + 1},
            .strides = {token * args.block_width, line * args.block_height, token, unit},
            .box = {64, args.across, args.down, box, 1}});
}

}  // namespace

bool serves_positions(const Problem& problem) {
  const BlockLayout& layout = problem.layout;
  if (short_width(problem) != 64 || problem.layout_k || layout.axes() > 2 ||
      layout.tokens() != kPositionBlocks * kPositions ||
      static_cast<int>(layout.blocks().size()) != kPositionBlocks) {
    return false;
  }
  const Block& first = layout.blocks().front();
  return first.tokens() == kPositions && first.extent[2] % 4 == 0 &&
         std::all_of(layout.blocks().begin(), layout.blocks().end(),
                     [&](const Block& block) { return block.extent == first.extent; });
}

bool serves_local(const Problem& problem, const std::array<std::int64_t, 3>& kernel) {
  return serves_positions(problem) && problem.layout.axes() == 2 &&
         kernel == std::array<std::int64_t, 3>{1, 3, 3};
}

PositionArgs position_args(const Problem& problem, int processors) {
  PositionArgs args{};
  static_cast<ShortArgs&>(args) = short_args(problem, processors);
  const Block& first = problem.layout.blocks().front();
  args.block_width = static_cast<int>(first.extent[2]);
  args.block_height = static_cast<int>(first.extent[1]);
  args.across = static_cast<int>(problem.layout.sequences().front().grid.back()) / args.block_width;
  args.down = kPositionBlocks / args.across;
  return args;
}

bool position_tensors(PositionArgs& args, const ForwardInputs& inputs, const TensorView& o) {
  const TensorView* const views[] = {&inputs.q, &inputs.k, &inputs.v, &o};
  for (int i = 0; i < 4; ++i) {
    if (!describe(args.maps[i][0], args.steps[i], args, *views[i], i == 3 ? 1 : 4)) return false;
  }
  return true;
}

void launch_dense_position(DType dtype, bool shared, const PositionArgs& args, void* stream) {
  if (dtype == DType::bf16) return launch_position<bf16>(shared, args, stream);
  if (dtype == DType::f16) return launch_position<f16>(shared, args, stream);
  fail(ErrorCode::internal, "cuda.dense", "no forward by positions for ", name(dtype));
}

}  // namespace mhla::cuda::sm90
