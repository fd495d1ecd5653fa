// Descriptions of tensors for the bulk copy engine (TMA), made on the host for every call.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mhla/tensor_view.h"

namespace mhla::cuda::sm90 {

// The driver's function; null where it is too old to have it.
using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);
TensorMapEncoder tensor_map_encoder();

// Describes boxes of `columns` (8, 32 or 64) by `tokens` of a [B, N, H, D] tensor of 16-bit
// elements, swizzled by the row of the box. False where the engine cannot read the tensor: rows
// that do not start on 16-byte boundaries, or strides it cannot count.
bool make_tensor_map(CUtensorMap& map, const TensorView& view, int columns, int tokens);

// A 16-bit tensor of five axes, the first of which is contiguous: extents, distances in elements
// from the second axis on, and the box to fetch, rows of which are 128 bytes and swizzled.
struct SliceTensor {
  void* data;
  std::int64_t extents[5];
  std::int64_t strides[4];
  int box[5];
};
bool make_slice_map(CUtensorMap& map, const SliceTensor& tensor);

}  // namespace mhla::cuda::sm90
