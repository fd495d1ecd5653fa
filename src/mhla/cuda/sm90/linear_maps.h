// Cutting blocks into boxes for the copy engine, and where it finds them in a tensor.
#pragma once

#include <optional>

#include "mhla/cuda/sm90/linear_tiles.h"
#include "mhla/layout.h"
#include "mhla/tensor_view.h"

namespace mhla::cuda::sm90 {

// Nothing where blocks differ in more than one way, or where boxes would leave most of a tile
// empty.
std::optional<TileLayout> tile_layout(const BlockLayout& layout);

// Slices of 64 columns of a [B, N, H, D] tensor, of one kind of block; batch entries continue the z
// axis. Nothing where the engine cannot address it.
std::optional<TensorMap> slice_map(const TensorView& view, const TileLayout& layout, int kind);

// Boxes of 64 columns by `rows` of [matrices][rows][columns] in the workspace.
TensorMap matrix_map(void* data, std::int64_t columns, std::int64_t rows, std::int64_t matrices,
                     int box_rows);

}  // namespace mhla::cuda::sm90
