// Tensor maps of the blocks of a grid, made on the host.
#include "mhla/cuda/sm90/fused_maps.h"

#include <algorithm>
#include <cstring>

#include "mhla/cuda/arguments.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/tensor_map.h"

namespace mhla::cuda::sm90 {
namespace {

// Tokens of a row of the grid.
std::int64_t grid_width(const BlockLayout& layout) {
  return layout.sequences().front().grid.back();
}

}  // namespace

std::optional<BoxGrid> box_grid(const BlockLayout& layout) {
  if (layout.sequences().size() != 1 || layout.axes() > 2 || layout.blocks().empty()) {
    return std::nullopt;
  }
  const Block& first = layout.blocks().front();
  const bool alike = std::all_of(layout.blocks().begin(), layout.blocks().end(),
                                 [&](const Block& block) { return block.extent == first.extent; });
  if (!alike || first.tokens() != kBoxTokens) return std::nullopt;
  const int across = static_cast<int>(grid_width(layout) / first.extent[2]);
  return BoxGrid{.blocks = static_cast<int>(layout.blocks().size()),
                 .across = across,
                 .width = static_cast<int>(first.extent[2]),
                 .height = static_cast<int>(first.extent[1]),
                 .across_inverse = box_inverse(across)};
}

bool has_tensor_map(const TensorView& view) {
  if (tensor_map_encoder() == nullptr) return false;
  constexpr std::int64_t kMost = std::int64_t{1} << 38;  // of a stride in elements of two bytes
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t stride = view.strides[axis];
    if (view.shape[axis] > 1 && (stride <= 0 || stride >= kMost)) return false;
  }
  return row_tensor(view).vectors;
}

TensorMap tensor_map(const TensorView& view, const BlockLayout& layout) {
  const Block& block = layout.blocks().front();
  const std::int64_t width = grid_width(layout);
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  // A stride that is never used may be anything; the driver wants whole 16 bytes.
  const auto stride = [&](std::int64_t elements, std::int64_t extent) {
    return extent > 1 ? size(elements * 2) : cuuint64_t{16};
  };
  const std::int64_t lines = view.shape[1] / width;
  const cuuint64_t sizes[5] = {size(view.shape[3]), size(width), size(lines), size(view.shape[2]),
                               size(view.shape[0])};
  const cuuint64_t strides[4] = {
      stride(view.strides[1], width), stride(view.strides[1] * width, lines),
      stride(view.strides[2], view.shape[2]), stride(view.strides[0], view.shape[0])};
  // Swizzled rows of 64 or 32 columns: 96 are fetched as three boxes.
  const cuuint32_t columns = view.shape[3] == 64 ? 64 : 32;
  const cuuint32_t box[5] = {columns, static_cast<cuuint32_t>(block.extent[2]),
                             static_cast<cuuint32_t>(block.extent[1]), 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = tensor_map_encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, view.data, sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(ErrorCode::device, "cuda", "cuTensorMapEncodeTiled: error ", static_cast<int>(status));
  }
  TensorMap copy;
  static_assert(sizeof copy == sizeof map);
  std::memcpy(&copy, &map, sizeof map);
  return copy;
}

}  // namespace mhla::cuda::sm90
