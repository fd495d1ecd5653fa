// Descriptions of tensors for the bulk copy engine (TMA), made on the host for every call.
#pragma once

#include <cuda.h>

#include "mhla/tensor_view.h"

namespace mhla::cuda::sm90 {

// Describes boxes of `columns` (8, 32 or 64) by `tokens` of a [B, N, H, D] tensor of 16-bit
// elements, swizzled by the row of the box. False where the engine cannot read the tensor: rows
// that do not start on 16-byte boundaries, or strides it cannot count.
bool make_tensor_map(CUtensorMap& map, const TensorView& view, int columns, int tokens);

}  // namespace mhla::cuda::sm90
