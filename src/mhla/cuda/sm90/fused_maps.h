// Tensor maps: how the copy engine finds the boxes of a layout in a tensor.
#pragma once

#include <optional>

#include "mhla/cuda/sm90/fused_boxes.h"
#include "mhla/layout.h"
#include "mhla/tensor_view.h"

namespace mhla::cuda::sm90 {

// The layout as boxes of 64 tokens, or nothing: blocks must be alike, of one sequence with one or
// two axes.
std::optional<BoxGrid> box_grid(const BlockLayout& layout);

// Whether the copy engine can address the tensor: rows and strides in whole 16 bytes.
bool has_tensor_map(const TensorView& view);
TensorMap tensor_map(const TensorView& view, const BlockLayout& layout);

}  // namespace mhla::cuda::sm90
