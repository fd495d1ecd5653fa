// What every maker of a mixing matrix needs to know about a layout: its blocks, as one small grid.
#pragma once

#include <array>
#include <cstdint>

#include "mhla/layout.h"

namespace mhla {

// Blocks per axis, outermost first; unused leading axes have one block.
struct BlockGrid {
  using Place = std::array<std::int64_t, 3>;

  Place counts{1, 1, 1};
  int axes = 1;

  std::int64_t size() const { return counts[0] * counts[1] * counts[2]; }
  Place place(std::int64_t block) const {
    return {block / (counts[1] * counts[2]), block / counts[2] % counts[1], block % counts[2]};
  }
  std::int64_t index(const Place& at) const {
    return (at[0] * counts[1] + at[1]) * counts[2] + at[2];
  }
  friend bool operator==(const BlockGrid&, const BlockGrid&) = default;
};

// One matrix serves all packed sequences. In 1-D the longest decides and shorter ones use a leading
// part; packed grids have equal block counts, which BlockLayout sees to.
BlockGrid block_grid(const BlockLayout& layout);

// Throws when heads * rows * cols weights are none or more than a matrix may hold.
void check_mixing_size(const char* where, std::int64_t heads, std::int64_t rows, std::int64_t cols);

}  // namespace mhla
