// Cutting grids into blocks, and the map between tokens and (block, position).
#include "mhla/layout.h"

#include <algorithm>
#include <utility>

#include "mhla/core/arithmetic.h"
#include "mhla/error.h"

namespace mhla {
namespace {

// A table of blocks is kept per layout. 2^18 blocks of 64 tokens are 16 million tokens, and no
// mixing matrix comes near; more is a typing error that would cost seconds and gigabytes.
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 18;

std::string join(const std::vector<std::int64_t>& values, const char* separator) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i ? separator : "") + std::to_string(values[i]);
  }
  return text;
}

void check_cut(const char* where, const Cut& cut, int axes) {
  if (cut.block.empty() == cut.blocks.empty()) {
    fail(where, "cut: give either block (tokens per block) or blocks (number of blocks), ",
         cut.block.empty() ? "got neither" : "got both");
  }
  const bool by_size = !cut.block.empty();
  const auto& numbers = by_size ? cut.block : cut.blocks;
  const char* label = by_size ? "block" : "blocks";
  if (static_cast<int>(numbers.size()) != axes) {
    fail(where, label, ": expected ", axes, axes == 1 ? " number" : " numbers",
         " (one per axis of the grid), got ", numbers.size());
  }
  for (const std::int64_t number : numbers) {
    if (number < 1) fail(where, label, ": must be at least 1 per axis, got ", join(numbers, "x"));
  }
}

// Cut positions of one axis: 0 = e_0 < e_1 < ... = size.
std::vector<std::int64_t> cut_axis(std::int64_t size, const Cut& cut, int axis) {
  std::vector<std::int64_t> edges{0};
  if (!cut.block.empty()) {
    const std::int64_t step = cut.block[axis];
    for (std::int64_t edge = 0; edge < size;) {
      edge = size - edge > step ? edge + step : size;
      edges.push_back(edge);
    }
    return edges;
  }
  // floor(i * size / n) without forming i * size, which may overflow.
  const std::int64_t n = cut.blocks[axis];
  const std::int64_t quotient = size / n, remainder = size % n;
  for (std::int64_t i = 1; i <= n; ++i) edges.push_back(i * quotient + i * remainder / n);
  return edges;
}

std::int64_t block_count(std::int64_t size, const Cut& cut, int axis) {
  if (!cut.blocks.empty()) return size == 0 ? 0 : cut.blocks[axis];
  return size / cut.block[axis] + (size % cut.block[axis] != 0);
}

Sequence make_sequence(const char* where, const std::vector<std::int64_t>& grid, const Cut& cut,
                       bool may_be_short) {
  Sequence sequence;
  sequence.grid = grid;
  sequence.tokens = 1;
  sequence.blocks = 1;
  for (int axis = 0; axis < static_cast<int>(grid.size()); ++axis) {
    const std::int64_t size = grid[axis];
    sequence.tokens = checked_mul(where, sequence.tokens, size);
    if (!cut.blocks.empty() && size > 0 && cut.blocks[axis] > size) {
      fail(where, "blocks: ", cut.blocks[axis], " blocks do not fit an axis of ", size,
           " tokens (grid ", join(grid, "x"), ")");
    }
    if (!cut.block.empty() && cut.block[axis] > size && !may_be_short) {
      fail(where, "block: a block of ", join(cut.block, "x"), " is larger than the grid of ",
           join(grid, "x"));
    }
    sequence.counts.push_back(block_count(size, cut, axis));
    sequence.blocks = checked_mul(where, sequence.blocks, sequence.counts.back());
    if (sequence.blocks > kMaxBlocks) {
      fail(where, "layout: more than ", kMaxBlocks, " blocks in grid ", join(grid, "x"),
           "; use larger blocks");
    }
  }
  for (int axis = 0; axis < static_cast<int>(grid.size()); ++axis) {
    sequence.edges.push_back(cut_axis(grid[axis], cut, axis));
  }
  return sequence;
}

// Appends the blocks of one sequence in raster order.
void append_blocks(const Sequence& sequence, std::int64_t sequence_index,
                   std::vector<Block>& blocks) {
  if (sequence.blocks == 0) return;
  const int missing = 3 - static_cast<int>(sequence.grid.size());  // leading axes of size one
  const std::vector<std::int64_t> whole{0, 1};
  const auto edges = [&](int axis) -> const std::vector<std::int64_t>& {
    return axis < missing ? whole : sequence.edges[axis - missing];
  };
  const auto size = [&](int axis) { return axis < missing ? 1 : sequence.grid[axis - missing]; };
  const std::array<std::int64_t, 2> stride{size(1) * size(2), size(2)};
  std::int64_t index = 0;
  for (std::size_t a = 0; a + 1 < edges(0).size(); ++a) {
    for (std::size_t y = 0; y + 1 < edges(1).size(); ++y) {
      for (std::size_t x = 0; x + 1 < edges(2).size(); ++x) {
        Block block;
        block.sequence = sequence_index;
        block.index = index++;
        block.first = sequence.first_token + edges(0)[a] * stride[0] + edges(1)[y] * stride[1] +
                      edges(2)[x];
        block.extent = {edges(0)[a + 1] - edges(0)[a], edges(1)[y + 1] - edges(1)[y],
                        edges(2)[x + 1] - edges(2)[x]};
        block.stride = stride;
        blocks.push_back(block);
      }
    }
  }
}

}  // namespace

struct BlockLayout::Data {
  Cut cut;
  int axes = 1;
  std::int64_t tokens = 0;
  std::int64_t mixing_size = 0;
  std::int64_t max_block_tokens = 0;
  std::vector<Sequence> sequences;
  std::vector<Block> blocks;
};

std::int64_t Block::token(std::int64_t position) const {
  const std::int64_t x = position % extent[2];
  const std::int64_t y = position / extent[2] % extent[1];
  const std::int64_t a = position / extent[2] / extent[1];
  return first + a * stride[0] + y * stride[1] + x;
}

BlockLayout::BlockLayout(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

BlockLayout BlockLayout::build(const char* where, std::vector<std::vector<std::int64_t>> sizes,
                               const Cut& cut, bool is_sequence) {
  auto data = std::make_shared<Data>();
  data->cut = cut;
  data->axes = static_cast<int>(sizes.front().size());
  check_cut(where, cut, data->axes);
  for (const auto& grid : sizes) {
    Sequence sequence = make_sequence(where, grid, cut, is_sequence);
    sequence.first_token = data->tokens;
    sequence.first_block = static_cast<std::int64_t>(data->blocks.size());
    data->tokens = checked_add(where, data->tokens, sequence.tokens);
    data->mixing_size = std::max(data->mixing_size, sequence.blocks);
    if (sequence.first_block + sequence.blocks > kMaxBlocks) {
      fail(where, "layout: more than ", kMaxBlocks, " blocks in all; use larger blocks");
    }
    append_blocks(sequence, static_cast<std::int64_t>(data->sequences.size()), data->blocks);
    data->sequences.push_back(std::move(sequence));
  }
  for (const Block& block : data->blocks) {
    data->max_block_tokens = std::max(data->max_block_tokens, block.tokens());
  }
  if (data->blocks.empty()) fail(where, "layout: no tokens, so no blocks (M = 0)");
  return BlockLayout(std::move(data));
}

BlockLayout BlockLayout::sequence(std::int64_t tokens, const Cut& cut) {
  if (tokens < 1) fail("layout", "sequence: at least one token, got ", tokens);
  return build("layout", {{tokens}}, cut, true);
}

BlockLayout BlockLayout::grid(const std::vector<std::int64_t>& size, const Cut& cut) {
  return packed_grids({size}, cut);
}

BlockLayout BlockLayout::packed(const std::vector<std::int64_t>& offsets, const Cut& cut) {
  if (offsets.size() < 2) fail("layout", "offsets: at least two (0 and N), got ", offsets.size());
  if (offsets.front() != 0) fail("layout", "offsets: must start at 0, got ", offsets.front());
  std::vector<std::vector<std::int64_t>> sizes;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i + 1] < offsets[i]) {
      fail("layout", "offsets: must not decrease, got ", offsets[i], " then ", offsets[i + 1]);
    }
    sizes.push_back({offsets[i + 1] - offsets[i]});
  }
  return build("layout", std::move(sizes), cut, true);
}

BlockLayout BlockLayout::packed_grids(const std::vector<std::vector<std::int64_t>>& sizes,
                                      const Cut& cut) {
  if (sizes.empty()) fail("layout", "grid: at least one grid, got none");
  for (const auto& size : sizes) {
    if (size.empty() || size.size() > 3) {
      fail("layout", "grid: 1 to 3 axes, got ", size.size());
    }
    if (size.size() != sizes.front().size()) {
      fail("layout", "grid: all packed grids need the same number of axes, got ",
           sizes.front().size(), " and ", size.size());
    }
    for (const std::int64_t extent : size) {
      if (extent < 1) fail("layout", "grid: every axis needs a token, got ", join(size, "x"));
    }
  }
  BlockLayout layout = build("layout", sizes, cut, false);
  for (const Sequence& sequence : layout.sequences()) {
    if (layout.axes() > 1 && sequence.counts != layout.sequences().front().counts) {
      fail("layout",
           "grid: packed grids share one mixing matrix, so they need equal block counts; ",
           join(layout.sequences().front().grid, "x"), " has ",
           join(layout.sequences().front().counts, "x"), " and ", join(sequence.grid, "x"), " has ",
           join(sequence.counts, "x"), " (give the number of blocks instead of their size)");
    }
  }
  return layout;
}

int BlockLayout::axes() const { return data_->axes; }
std::int64_t BlockLayout::tokens() const { return data_->tokens; }
std::int64_t BlockLayout::mixing_size() const { return data_->mixing_size; }
std::int64_t BlockLayout::max_block_tokens() const { return data_->max_block_tokens; }
const Cut& BlockLayout::cut() const { return data_->cut; }
const std::vector<Sequence>& BlockLayout::sequences() const { return data_->sequences; }
const std::vector<Block>& BlockLayout::blocks() const { return data_->blocks; }

BlockPosition BlockLayout::locate(std::int64_t token) const {
  if (token < 0 || token >= tokens()) {
    fail("layout", "token ", token, " is outside 0 .. ", tokens() - 1);
  }
  const auto& all = sequences();
  const auto after = std::upper_bound(
      all.begin(), all.end(), token,
      [](std::int64_t value, const Sequence& sequence) { return value < sequence.first_token; });
  const Sequence& sequence = *(after - 1);
  std::int64_t rest = token - sequence.first_token;
  std::int64_t block = 0, position = 0, block_scale = 1, position_scale = 1;
  for (int axis = static_cast<int>(sequence.grid.size()) - 1; axis >= 0; --axis) {
    const std::int64_t coordinate = rest % sequence.grid[axis];
    rest /= sequence.grid[axis];
    const auto& edges = sequence.edges[axis];
    const auto upper = std::upper_bound(edges.begin(), edges.end(), coordinate);
    const std::int64_t cell = upper - edges.begin() - 1;
    block += cell * block_scale;
    block_scale *= sequence.counts[axis];
    position += (coordinate - edges[cell]) * position_scale;
    position_scale *= edges[cell + 1] - edges[cell];
  }
  return {sequence.first_block + block, position};
}

std::int64_t BlockLayout::token_at(BlockPosition place) const {
  if (place.block < 0 || place.block >= static_cast<std::int64_t>(blocks().size())) {
    fail("layout", "block ", place.block, " is outside 0 .. ", blocks().size() - 1);
  }
  const Block& block = blocks()[place.block];
  if (place.position < 0 || place.position >= block.tokens()) {
    fail("layout", "position ", place.position, " is outside block ", place.block, " of ",
         block.tokens(), " tokens");
  }
  return block.token(place.position);
}

std::string BlockLayout::to_string() const {
  std::string text = axes() == 1 ? "sequence=" : "grid=";
  for (std::size_t i = 0; i < sequences().size(); ++i) {
    text += (i ? "+" : "") + join(sequences()[i].grid, "x");
  }
  return text + (cut().block.empty() ? " blocks=" + join(cut().blocks, "x")
                                     : " block=" + join(cut().block, "x"));
}

bool operator==(const BlockLayout& a, const BlockLayout& b) {
  if (a.data_ == b.data_) return true;
  if (a.cut().block != b.cut().block || a.cut().blocks != b.cut().blocks) return false;
  if (a.sequences().size() != b.sequences().size()) return false;
  for (std::size_t i = 0; i < a.sequences().size(); ++i) {
    if (a.sequences()[i].grid != b.sequences()[i].grid) return false;
  }
  return true;
}

}  // namespace mhla
