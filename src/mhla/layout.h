// How tokens are cut into blocks: 1-D, 2-D or 3-D, ragged at the edge, one sequence or many packed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mhla {

// How an axis is cut. Exactly one of the two is given, with one number per axis of the grid.
struct Cut {
  std::vector<std::int64_t> block =
      {};  // tokens per block; the last block of an axis may be shorter
  std::vector<std::int64_t> blocks =
      {};  // number of blocks; an axis of G tokens is cut at floor(i*G/n)
};

// One block: a box of a token grid. The tokens of a block, in the order of their position inside
// it, are first + a*stride[0] + y*stride[1] + x for a < extent[0], y < extent[1], x < extent[2].
struct Block {
  std::int64_t sequence = 0;  // which packed sequence it belongs to
  std::int64_t index = 0;     // row (queries) or column (keys) of the mixing matrix
  std::int64_t first = 0;  // token number of its first token, counted over the whole packed batch
  std::array<std::int64_t, 3> extent{1, 1, 1};  // 1-D and 2-D grids have leading ones
  std::array<std::int64_t, 2> stride{0, 0};  // token stride of the two outer axes; the inner is 1

  std::int64_t tokens() const { return extent[0] * extent[1] * extent[2]; }
  std::int64_t token(std::int64_t position) const;  // token number of a position inside the block
};

// A token's place: which block of the layout, and where inside it.
struct BlockPosition {
  std::int64_t block = 0;     // into BlockLayout::blocks()
  std::int64_t position = 0;  // into the block, raster order
};

// One grid of tokens inside a packed layout.
struct Sequence {
  std::vector<std::int64_t> grid;                // tokens per axis, 1 to 3 axes
  std::vector<std::int64_t> counts;              // blocks per axis
  std::vector<std::vector<std::int64_t>> edges;  // per axis: counts + 1 cut positions
  std::int64_t first_token = 0;
  std::int64_t first_block = 0;
  std::int64_t tokens = 0;
  std::int64_t blocks = 0;
};

// Immutable and cheap to copy. Tokens are in natural order (raster; frame-row-column for video),
// blocks in raster order. Packed sequences lie one after another and never see each other.
class BlockLayout {
 public:
  // N tokens; a sequence may be shorter than one block.
  static BlockLayout sequence(std::int64_t tokens, const Cut& cut);
  // 1 to 3 axes, outermost first.
  static BlockLayout grid(const std::vector<std::int64_t>& size, const Cut& cut);
  // Sequences of different lengths, as in flash attention's cu_seqlens: 0 = o_0 <= o_1 <= ... = N.
  static BlockLayout packed(const std::vector<std::int64_t>& offsets, const Cut& cut);
  // Grids of different sizes, cut alike.
  static BlockLayout packed_grids(const std::vector<std::vector<std::int64_t>>& sizes,
                                  const Cut& cut);

  int axes() const;             // 1, 2 or 3
  std::int64_t tokens() const;  // over all sequences
  std::int64_t mixing_size()
      const;  // rows or columns a mixing matrix needs: most blocks of a sequence
  std::int64_t max_block_tokens() const;
  const Cut& cut() const;
  const std::vector<Sequence>& sequences() const;
  const std::vector<Block>& blocks() const;  // sequence by sequence

  BlockPosition locate(std::int64_t token) const;
  std::int64_t token_at(BlockPosition place) const;

  // `grid=32x32 block=8x8`, `sequence=100+32+7 block=64`; parse_problem reads it back.
  std::string to_string() const;
  friend bool operator==(const BlockLayout& a, const BlockLayout& b);

 private:
  struct Data;
  explicit BlockLayout(std::shared_ptr<const Data> data);
  static BlockLayout build(const char* where, std::vector<std::vector<std::int64_t>> sizes,
                           const Cut& cut, bool is_sequence);
  std::shared_ptr<const Data> data_;
};

}  // namespace mhla
