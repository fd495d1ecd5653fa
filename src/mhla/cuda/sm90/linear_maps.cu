// Cutting blocks into boxes for the copy engine, and where it finds them in a tensor.
#include "mhla/cuda/sm90/linear_maps.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "mhla/cuda/sm90/tensor_map.h"
#include "mhla/error.h"

namespace mhla::cuda::sm90 {
namespace {

constexpr int kTileRows = 64;

std::optional<TensorMap> map_of(const SliceTensor& tensor) {
  CUtensorMap map;
  if (!make_slice_map(map, tensor)) return std::nullopt;
  TensorMap copy;
  static_assert(sizeof copy == sizeof map);
  std::memcpy(&copy, &map, sizeof map);
  return copy;
}

// Cuts a block into slices of whole lines or whole planes, so that few tiles hold it and copies are
// large. Nothing where boxes would leave most of a tile empty.
std::optional<TileShape> shape_of(const int (&extent)[3]) {
  // NOTE: a copy of a few rows costs the engine as much as one of many.
  constexpr int kLeastRows = 48, kLeastSliceRows = 8;
  std::optional<TileShape> best;
  for (int axis = 0; axis < 3; ++axis) {  // the outermost one that a slice has a part of
    const int whole = axis == 0 ? extent[1] * extent[2] : axis == 1 ? extent[2] : 1;
    for (int part = 1; part <= extent[axis] && part * whole <= kTileRows; ++part) {
      if (extent[axis] % part != 0) continue;
      TileShape shape{.extent = {extent[0], extent[1], extent[2]},
                      .slice = {1, 1, 1},
                      .slice_rows = part * whole,
                      .slices = extent[0] * extent[1] * extent[2] / (part * whole),
                      .per_tile = 1,
                      .tiles = 1};
      for (int inner = axis + 1; inner < 3; ++inner) shape.slice[inner] = extent[inner];
      shape.slice[axis] = part;
      shape.per_tile = std::min(kTileRows / shape.slice_rows, shape.slices);
      shape.tiles = (shape.slices + shape.per_tile - 1) / shape.per_tile;
      if (shape.per_tile * shape.slice_rows < kLeastRows || shape.slice_rows < kLeastSliceRows) {
        continue;
      }
      const bool better = !best || shape.tiles < best->tiles ||
                          (shape.tiles == best->tiles && shape.slice_rows > best->slice_rows);
      if (better) best = shape;
    }
  }
  return best;
}

}  // namespace

std::optional<TileLayout> tile_layout(const BlockLayout& layout) {
  if (layout.sequences().size() != 1 || layout.blocks().empty()) return std::nullopt;
  const Sequence& sequence = layout.sequences().front();
  const int missing = 3 - static_cast<int>(sequence.grid.size());
  TileLayout tiles{.blocks = static_cast<int>(layout.blocks().size()),
                   .counts = {1, 1, 1},
                   .grid = {1, 1, 1},
                   .step = {1, 1, 1},
                   .rest = {0, 0, 0},
                   .kinds = 1,
                   .whole = 1,
                   .one_slice = 0,
                   .shapes = {},
                   .box = {1, 1, 1},
                   .by_blocks = {},
                   .by_columns = {},
                   .by_lines = {}};
  for (int axis = missing; axis < 3; ++axis) {
    const auto& edges = sequence.edges[axis - missing];
    const auto count = static_cast<std::int64_t>(edges.size()) - 1;
    std::int64_t step = edges[1] - edges[0], rest = 0;
    bool alike = true, longer = true;  // or cut at floor(i * grid / count)
    for (std::int64_t i = 1; i <= count; ++i) {
      const std::int64_t here = edges[i] - edges[i - 1];
      alike = alike && (here == step || (i == count && here < step));
      longer = longer && edges[i] == i * edges[count] / count;
    }
    if (!alike) {
      if (!longer || tiles.kinds == 2) return std::nullopt;
      tiles.kinds = 2;
      step = edges[count] / count;
      rest = edges[count] % count;
    }
    if (edges[count] % step != 0 || rest != 0) tiles.whole = 0;
    tiles.counts[axis] = static_cast<int>(count);
    tiles.grid[axis] = static_cast<int>(sequence.grid[axis - missing]);
    tiles.step[axis] = static_cast<int>(step);
    tiles.rest[axis] = static_cast<int>(rest);
    tiles.box[axis] = static_cast<int>(step) + (rest != 0 ? 1 : 0);
  }
  const auto first = shape_of(tiles.step), last = shape_of(tiles.box);
  if (!first || !last) return std::nullopt;
  tiles.shapes[0] = *first;
  tiles.shapes[1] = *last;
  tiles.one_slice = tiles.whole != 0 && first->slices == 1 ? 1 : 0;
  tiles.by_blocks = Divisor(tiles.blocks);
  tiles.by_columns = Divisor(tiles.counts[2]), tiles.by_lines = Divisor(tiles.counts[1]);
  return tiles;
}

std::optional<TensorMap> slice_map(const TensorView& view, const TileLayout& layout, int kind) {
  const std::int64_t batch = view.shape[0], token = view.strides[1];
  const std::int64_t line = layout.grid[2], plane = line * layout.grid[1];
  // Batch entries continue the z axis: there is none, or they follow each other in memory and the
  // last block does not reach into the next entry.
  const bool short_end = layout.rest[0] == 0 && layout.grid[0] % layout.step[0] != 0;
  if (batch > 1 && layout.grid[0] > 1 &&
      (view.strides[0] != plane * layout.grid[0] * token || short_end)) {
    return std::nullopt;
  }
  const std::int64_t z_stride = layout.grid[0] > 1 ? plane * token : view.strides[0];
  const auto& slice = layout.shapes[kind].slice;
  const SliceTensor tensor{
      .data = view.data,
      .extents = {view.shape[3], line, layout.grid[1], layout.grid[0] * batch, view.shape[2]},
      .strides = {token, line * token, z_stride, view.strides[2]},
      .box = {64, slice[2], slice[1], slice[0], 1}};
  return map_of(tensor);
}

TensorMap matrix_map(void* data, std::int64_t columns, std::int64_t rows, std::int64_t matrices,
                     int box_rows) {
  const auto map = map_of({.data = data,
                           .extents = {columns, rows, matrices, 1, 1},
                           .strides = {columns, columns * rows, 0, 0},
                           .box = {64, box_rows, 1, 1, 1}});
  if (!map) fail(ErrorCode::device, "cuda", "no tensor map of the workspace");
  return *map;
}

}  // namespace mhla::cuda::sm90
