// Layouts: cuts, ragged edges, packing, and the token map in both directions.
#include "mhla/layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/tensors.h"

namespace mhla {
namespace {

using test::error_of;

// Every token has one place, every place one token, and positions count up inside each block.
void expect_bijection(const BlockLayout& layout) {
  std::vector<int> seen(static_cast<std::size_t>(layout.tokens()), 0);
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    const Block& block = layout.blocks()[b];
    for (std::int64_t w = 0; w < block.tokens(); ++w) {
      const std::int64_t token = block.token(w);
      ASSERT_GE(token, 0);
      ASSERT_LT(token, layout.tokens());
      ++seen[static_cast<std::size_t>(token)];
      const BlockPosition place = layout.locate(token);
      EXPECT_EQ(place.block, static_cast<std::int64_t>(b));
      EXPECT_EQ(place.position, w);
      EXPECT_EQ(layout.token_at(place), token);
    }
  }
  for (const int count : seen) EXPECT_EQ(count, 1);
}

TEST(Layout, GridFollowsTheFormulaOfSpecSection15) {
  const auto layout = BlockLayout::grid({8, 8}, {.block = {4, 4}});
  for (std::int64_t y = 0; y < 8; ++y) {
    for (std::int64_t x = 0; x < 8; ++x) {
      const BlockPosition place = layout.locate(y * 8 + x);
      EXPECT_EQ(place.block, y / 4 * 2 + x / 4);
      EXPECT_EQ(place.position, y % 4 * 4 + x % 4);
    }
  }
}

TEST(Layout, VideoGridFollowsTheFormulaOfSpecSection15) {
  const auto layout = BlockLayout::grid({6, 4, 10}, {.blocks = {3, 2, 5}});
  for (std::int64_t f = 0; f < 6; ++f) {
    for (std::int64_t y = 0; y < 4; ++y) {
      for (std::int64_t x = 0; x < 10; ++x) {
        const BlockPosition place = layout.locate((f * 4 + y) * 10 + x);
        EXPECT_EQ(place.block, (f / 2 * 2 + y / 2) * 5 + x / 2);
        EXPECT_EQ(place.position, (f % 2 * 2 + y % 2) * 2 + x % 2);
      }
    }
  }
}

TEST(Layout, TheTokenMapIsABijectionInEveryShape) {
  expect_bijection(BlockLayout::sequence(1, {.block = {64}}));
  expect_bijection(BlockLayout::sequence(130, {.block = {64}}));
  expect_bijection(BlockLayout::sequence(52, {.blocks = {10}}));
  expect_bijection(BlockLayout::grid({14, 14}, {.block = {4, 4}}));
  expect_bijection(BlockLayout::grid({7, 5, 13}, {.block = {3, 2, 4}}));
  expect_bijection(BlockLayout::grid({7, 5, 13}, {.blocks = {3, 2, 4}}));
  expect_bijection(BlockLayout::packed({0, 5, 5, 70, 71}, {.block = {8}}));
  expect_bijection(BlockLayout::packed_grids({{4, 6}, {9, 5}}, {.blocks = {2, 3}}));
}

TEST(Layout, BlockSizeLeavesAShorterLastBlock) {
  const auto layout = BlockLayout::grid({14, 14}, {.block = {4, 4}});
  EXPECT_EQ(layout.blocks().size(), 16u);
  EXPECT_EQ(layout.blocks().back().extent, (std::array<std::int64_t, 3>{1, 2, 2}));
  EXPECT_EQ(layout.max_block_tokens(), 16);
}

TEST(Layout, BlockCountCutsAtFloorAndSizesDifferByOne) {
  const auto layout = BlockLayout::sequence(52, {.blocks = {10}});
  const auto& edges = layout.sequences()[0].edges[0];
  for (std::int64_t i = 0; i <= 10; ++i) EXPECT_EQ(edges[static_cast<std::size_t>(i)], i * 52 / 10);
}

TEST(Layout, PackedSequencesCountTheirBlocksFromZero) {
  const auto layout = BlockLayout::packed({0, 10, 10, 13}, {.block = {4}});
  ASSERT_EQ(layout.sequences().size(), 3u);
  EXPECT_EQ(layout.sequences()[1].blocks, 0);
  EXPECT_EQ(layout.mixing_size(), 3);
  EXPECT_EQ(layout.blocks()[3].sequence, 2);
  EXPECT_EQ(layout.blocks()[3].index, 0);
  EXPECT_EQ(layout.blocks()[3].first, 10);
}

TEST(Layout, EqualityComparesGridsAndCuts) {
  const auto layout = BlockLayout::grid({8, 8}, {.block = {4, 4}});
  EXPECT_EQ(layout, BlockLayout::grid({8, 8}, {.block = {4, 4}}));
  EXPECT_FALSE(layout == BlockLayout::grid({8, 8}, {.blocks = {2, 2}}));
  EXPECT_FALSE(layout == BlockLayout::grid({8, 12}, {.block = {4, 4}}));
}

TEST(Layout, BadCutsAreRefusedWithTheValue) {
  const auto message = [](auto f) { return error_of(f); };
  EXPECT_NE(message([] { BlockLayout::grid({8, 8}, {}); }).find("got neither"), std::string::npos);
  EXPECT_NE(message([] {
              BlockLayout::grid({8, 8}, {.block = {4, 4}, .blocks = {2, 2}});
            }).find("got both"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::grid({8, 8}, {.block = {4}}); }).find("expected 2 numbers"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::grid({8, 8}, {.block = {4, 0}}); }).find("got 4x0"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::grid({8, 8}, {.block = {16, 4}}); }).find("larger than the"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::grid({8, 8}, {.blocks = {9, 4}}); }).find("do not fit"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::sequence(0, {.block = {4}}); }).find("got 0"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::sequence(-3, {.block = {4}}); }).find("got -3"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::grid({8, 0}, {.block = {1, 1}}); }).find("8x0"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::grid({2, 2, 2, 2}, {.block = {1}}); }).find("1 to 3 axes"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::packed_grids({}, {.block = {1}}); }).find("got none"),
            std::string::npos);
  EXPECT_NE(message([] {
              BlockLayout::packed_grids({{4, 4}, {8, 8}}, {.block = {4, 4}});
            }).find("equal block counts"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::packed({0}, {.block = {4}}); }).find("at least two"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::packed({1, 4}, {.block = {4}}); }).find("start at 0"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::packed({0, 4, 3}, {.block = {4}}); }).find("not decrease"),
            std::string::npos);
  EXPECT_NE(message([] { BlockLayout::packed({0, 0}, {.block = {4}}); }).find("M = 0"),
            std::string::npos);
}

TEST(Layout, HugeSizesAreErrorsInsteadOfOverflow) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(error_of([] {
              BlockLayout::grid({kHuge, kHuge}, {.block = {kHuge, kHuge}});
            }).find("overflow"),
            std::string::npos);
  EXPECT_NE(error_of([] { BlockLayout::sequence(kHuge, {.block = {1}}); }).find("blocks"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              BlockLayout::packed({0, 200'000, 400'000}, {.block = {1}});
            }).find("blocks in all"),
            std::string::npos);
  EXPECT_EQ(BlockLayout::sequence(kHuge, {.block = {kHuge}}).blocks().size(), 1u);
  EXPECT_EQ(BlockLayout::sequence(kHuge, {.blocks = {7}}).blocks().size(), 7u);
}

TEST(Layout, PlacesOutsideTheLayoutAreRefused) {
  const auto layout = BlockLayout::sequence(10, {.block = {4}});
  EXPECT_NE(error_of([&] { layout.locate(10); }).find("outside 0 .. 9"), std::string::npos);
  EXPECT_NE(error_of([&] { layout.locate(-1); }).find("token -1"), std::string::npos);
  EXPECT_NE(error_of([&] { layout.token_at({3, 0}); }).find("block 3"), std::string::npos);
  EXPECT_NE(error_of([&] { layout.token_at({2, 2}); }).find("position 2"), std::string::npos);
}

}  // namespace
}  // namespace mhla
