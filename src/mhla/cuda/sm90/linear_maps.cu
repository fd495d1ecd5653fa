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

// The largest divisor of n that is at most `most`.
int part_of(int n, int most) {
  int part = std::min(n, most);
  while (n % part != 0) --part;
  return part;
}

std::optional<TensorMap> map_of(const SliceTensor& tensor) {
  CUtensorMap map;
  if (!make_slice_map(map, tensor)) return std::nullopt;
  TensorMap copy;
  static_assert(sizeof copy == sizeof map);
  std::memcpy(&copy, &map, sizeof map);
  return copy;
}

}  // namespace

std::optional<TileLayout> tile_layout(const BlockLayout& layout) {
  if (layout.sequences().size() != 1 || layout.blocks().empty()) return std::nullopt;
  const Sequence& sequence = layout.sequences().front();
  const int missing = 3 - static_cast<int>(sequence.grid.size());
  TileLayout tiles{.blocks = static_cast<int>(layout.blocks().size()),
                   .counts = {1, 1, 1},
                   .grid = {1, 1, 1},
                   .extent = {1, 1, 1},
                   .slice = {1, 1, 1},
                   .across = {1, 1, 1},
                   .slice_rows = 1,
                   .slices = 1,
                   .per_tile = 1,
                   .tiles = 1};
  for (int axis = missing; axis < 3; ++axis) {
    const auto& edges = sequence.edges[axis - missing];
    const std::int64_t extent = edges[1] - edges[0];
    for (std::size_t i = 1; i < edges.size(); ++i) {
      const std::int64_t here = edges[i] - edges[i - 1];
      if (here != extent && (i + 1 < edges.size() || here > extent)) return std::nullopt;
    }
    tiles.counts[axis] = static_cast<int>(edges.size()) - 1;
    tiles.grid[axis] = static_cast<int>(sequence.grid[axis - missing]);
    tiles.extent[axis] = static_cast<int>(extent);
  }
  // Whole lines if they fit a tile, whole planes if those do.
  int rows = 1;
  for (int axis = 2; axis >= 0; --axis) {
    const int most = tiles.slices == 1 ? kTileRows / rows : 1;
    tiles.slice[axis] = part_of(tiles.extent[axis], std::max(1, most));
    tiles.across[axis] = tiles.extent[axis] / tiles.slice[axis];
    rows *= tiles.slice[axis];
    tiles.slices *= tiles.across[axis];
  }
  tiles.slice_rows = rows;
  tiles.per_tile = std::min(kTileRows / rows, tiles.slices);
  tiles.tiles = (tiles.slices + tiles.per_tile - 1) / tiles.per_tile;
  // NOTE: a copy of a few rows costs the engine as much as one of many.
  constexpr int kLeastRows = 48, kLeastSliceRows = 8;
  if (tiles.per_tile * rows < kLeastRows || rows < kLeastSliceRows) return std::nullopt;
  return tiles;
}

std::optional<TensorMap> slice_map(const TensorView& view, const TileLayout& layout) {
  const std::int64_t batch = view.shape[0], token = view.strides[1];
  const std::int64_t line = layout.grid[2], plane = line * layout.grid[1];
  // Batch entries continue the z axis: there is none, or they follow each other in memory and the
  // last block does not reach into the next entry.
  if (batch > 1 && layout.grid[0] > 1 &&
      (view.strides[0] != plane * layout.grid[0] * token ||
       layout.grid[0] % layout.extent[0] != 0)) {
    return std::nullopt;
  }
  const std::int64_t z_stride = layout.grid[0] > 1 ? plane * token : view.strides[0];
  const SliceTensor tensor{
      .data = view.data,
      .extents = {view.shape[3], line, layout.grid[1], layout.grid[0] * batch, view.shape[2]},
      .strides = {token, line * token, z_stride, view.strides[2]},
      .box = {64, layout.slice[2], layout.slice[1], layout.slice[0], 1}};
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
