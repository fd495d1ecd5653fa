// Token -> (block, position, coordinates) from grid and cut numbers, by division.
#include <algorithm>

#include "mhla/verify/dense_oracle.h"

namespace mhla::verify {
namespace {

struct AxisPlace {
  std::int64_t block, start, length;  // which block of the axis, where it begins, its tokens
};

AxisPlace place_on_axis(std::int64_t token, std::int64_t size, const Cut& cut, std::size_t axis) {
  if (!cut.block.empty()) {
    const std::int64_t width = cut.block[axis], block = token / width, start = block * width;
    return {block, start, std::min(width, size - start)};
  }
  // Block i holds floor(i*G/n) <= token < floor((i+1)*G/n); solved for i.
  const std::int64_t count = cut.blocks[axis], block = ((token + 1) * count - 1) / size;
  const std::int64_t start = block * size / count;
  return {block, start, (block + 1) * size / count - start};
}

std::int64_t blocks_on_axis(std::int64_t size, const Cut& cut, std::size_t axis) {
  if (!cut.blocks.empty()) return cut.blocks[axis];
  return (size + cut.block[axis] - 1) / cut.block[axis];
}

TokenPlace place(std::int64_t token, const std::vector<std::int64_t>& grid, const Cut& cut) {
  TokenPlace result;
  std::int64_t block_stride = 1, position_stride = 1;
  for (std::size_t axis = grid.size(); axis-- > 0;) {  // innermost axis first
    const std::int64_t along = token % grid[axis];
    token /= grid[axis];
    const AxisPlace on_axis = place_on_axis(along, grid[axis], cut, axis);
    result.coordinate[axis] = along - on_axis.start;
    result.block += on_axis.block * block_stride;
    result.position += result.coordinate[axis] * position_stride;
    block_stride *= blocks_on_axis(grid[axis], cut, axis);
    position_stride *= on_axis.length;
  }
  return result;
}

}  // namespace

std::vector<std::vector<TokenPlace>> token_places(const BlockLayout& layout) {
  std::vector<std::vector<TokenPlace>> all;
  for (const Sequence& sequence : layout.sequences()) {
    std::int64_t tokens = 1;
    for (const std::int64_t size : sequence.grid) tokens *= size;
    std::vector<TokenPlace>& places = all.emplace_back();
    for (std::int64_t token = 0; token < tokens; ++token) {
      places.push_back(place(token, sequence.grid, layout.cut()));
    }
  }
  return all;
}

}  // namespace mhla::verify
