// Resampling a mixing matrix to another layout, and its Toeplitz form.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mhla/error.h"
#include "mhla/mixing.h"

namespace mhla {
namespace {

using Counts = std::vector<std::int64_t>;

BlockLayout blocks(const Counts& counts) {
  Counts size;
  for (const std::int64_t count : counts) size.push_back(2 * count);
  return BlockLayout::grid(size, {.blocks = counts});
}

// Positive weights without any symmetry.
MixingMatrix arbitrary(std::int64_t size, std::int64_t heads = 0) {
  std::vector<float> weights(size * size * (heads ? heads : 1));
  std::uint32_t state = 1;
  for (float& weight : weights) {
    state = state * 1664525U + 1013904223U;
    weight = static_cast<float>(state >> 8) / (1 << 24) + 0.01F;
  }
  return MixingMatrix::from(weights.data(), heads, size, size);
}

double row_sum(const MixingMatrix& m, std::int64_t row, std::int64_t head = 0) {
  double sum = 0;
  for (std::int64_t j = 0; j < m.cols(); ++j) sum += m.at(row, j, head);
  return sum;
}

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

#define EXPECT_REFUSED(call, part)                                        \
  EXPECT_NE(refusal([&] { (void)(call); }).find(part), std::string::npos) \
      << refusal([&] { (void)(call); })

const std::vector<std::pair<Counts, Counts>> kMoves = {{{4}, {9}},
                                                       {{9}, {4}},
                                                       {{1}, {5}},
                                                       {{5}, {1}},
                                                       {{4, 4}, {8, 8}},
                                                       {{4, 6}, {3, 9}},
                                                       {{3, 5, 4}, {4, 3, 7}},
                                                       {{2, 2, 2}, {1, 3, 2}}};

TEST(Resample, EqualBlockCountsChangeNothing) {
  for (const Counts& counts : {Counts{7}, Counts{3, 5}, Counts{2, 3, 4}}) {
    const MixingMatrix m = arbitrary(blocks(counts).mixing_size(), 2);
    for (const bool keep : {false, true}) {
      const auto same = m.resample(blocks(counts), blocks(counts), {.keep_row_sums = keep});
      EXPECT_EQ(same.data(), m.data());
    }
  }
  const auto small = BlockLayout::grid({16, 16}, {.blocks = {4, 4}});
  const auto large = BlockLayout::grid({30, 50}, {.blocks = {4, 4}});
  MixingMatrix m = arbitrary(16);
  m.at(3, 4) = std::numeric_limits<float>::infinity();  // arithmetic would spread it
  EXPECT_EQ(m.resample(small, large).data(), m.data());
}

TEST(Resample, ConstantsStayConstant) {
  for (const auto& [from, to] : kMoves) {
    const BlockLayout a = blocks(from);
    const BlockLayout b = blocks(to);
    const MixingMatrix m = MixingMatrix::constant(a.mixing_size(), a.mixing_size(), 0.25F);
    const MixingMatrix plain = m.resample(a, b, {.keep_row_sums = false});
    for (const float weight : plain.data()) EXPECT_NEAR(weight, 0.25, 1e-7);
    const double kept = 0.25 * a.mixing_size() / b.mixing_size();
    const MixingMatrix scaled = m.resample(a, b);
    for (const float weight : scaled.data()) EXPECT_NEAR(weight, kept, 1e-6 * kept);
  }
}

TEST(Resample, IsLinearInterpolationBetweenBlockCentres) {
  // Two blocks to four: new centres lie at -0.25, 0.25, 0.75, 1.25 of the old, clamped to 0 and 1.
  const double at[] = {0, 0.25, 0.75, 1};
  const std::vector<float> w{1, 2, 5, 11};
  const auto m = MixingMatrix::from(w.data(), 0, 2, 2)
                     .resample(blocks({2}), blocks({4}), {.keep_row_sums = false});
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const double y = at[i];
      const double x = at[j];
      EXPECT_NEAR(m.at(i, j),
                  (1 - y) * ((1 - x) * w[0] + x * w[1]) + y * ((1 - x) * w[2] + x * w[3]), 1e-6);
    }
  }
}

TEST(Resample, ProductsOfAxesResampleAxisByAxis) {
  // m[(a,b),(c,d)] = p[a,c] r[b,d] must become p'[a,c] r'[b,d].
  const MixingMatrix p = arbitrary(3);
  const MixingMatrix r = arbitrary(4);
  MixingMatrix product = MixingMatrix::constant(12, 12, 0);
  for (std::int64_t i = 0; i < 12; ++i) {
    for (std::int64_t j = 0; j < 12; ++j)
      product.at(i, j) = p.at(i / 4, j / 4) * r.at(i % 4, j % 4);
  }
  const ResampleOptions plain{.keep_row_sums = false};
  const auto p2 = p.resample(blocks({3}), blocks({5}), plain);
  const auto r2 = r.resample(blocks({4}), blocks({2}), plain);
  const auto flat = product.resample(blocks({3, 4}), blocks({5, 2}), plain);
  const auto deep = product.resample(blocks({3, 1, 4}), blocks({5, 1, 2}), plain);
  for (std::int64_t i = 0; i < 10; ++i) {
    for (std::int64_t j = 0; j < 10; ++j) {
      const double expected = double{p2.at(i / 2, j / 2)} * r2.at(i % 2, j % 2);
      EXPECT_NEAR(flat.at(i, j), expected, 1e-6);
      EXPECT_NEAR(deep.at(i, j), expected, 1e-6);
    }
  }
}

TEST(Resample, ALinearFieldSurvivesGoingUpAwayFromTheEdge) {
  MixingMatrix m = MixingMatrix::constant(8, 8, 0);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) m.at(i, j) = static_cast<float>(3 * i + j);
  }
  const auto fine = m.resample(blocks({8}), blocks({24}), {.keep_row_sums = false});
  for (int i = 1; i < 23; ++i) {
    for (int j = 1; j < 23; ++j) {
      EXPECT_NEAR(fine.at(i, j), 3 * ((i + .5) / 3 - .5) + (j + .5) / 3 - .5, 1e-5);
    }
  }
  // Every third fine centre is a coarse centre, so coming back is exact.
  const auto back = fine.resample(blocks({24}), blocks({8}), {.keep_row_sums = false});
  for (std::size_t e = 0; e < 64; ++e) EXPECT_NEAR(back.data()[e], m.data()[e], 1e-5);
}

TEST(Resample, RowSumsOfOneAreKeptUpAndDown) {
  for (const auto& [from, to] : kMoves) {
    const auto m = MixingMatrix::locality(blocks(from)).resample(blocks(from), blocks(to));
    for (std::int64_t i = 0; i < m.rows(); ++i) EXPECT_NEAR(row_sum(m, i), 1, 1e-6);
    for (const float weight : m.data()) EXPECT_GE(weight, 0);
  }
}

TEST(Resample, OtherRowSumsAreInterpolated) {
  const MixingMatrix m = arbitrary(2, 3);
  const auto wide = m.resample(blocks({2}), blocks({4}));
  EXPECT_EQ(wide.heads(), 3);
  for (std::int64_t h = 0; h < 3; ++h) {
    const double low = row_sum(m, 0, h);
    const double high = row_sum(m, 1, h);
    EXPECT_NEAR(row_sum(wide, 0, h), low, 1e-6);
    EXPECT_NEAR(row_sum(wide, 1, h), .75 * low + .25 * high, 1e-6);
    EXPECT_NEAR(row_sum(wide, 3, h), high, 1e-6);
  }
}

TEST(Resample, ARowThatInterpolatesToZeroKeepsItsSumEvenly) {
  // Three blocks to one reads only m[1][1] = 0, but the row sums to one.
  const std::vector<float> w{0, 1, 0, .5F, 0, .5F, 0, 1, 0};
  const auto m = MixingMatrix::from(w.data(), 0, 3, 3).resample(blocks({3}), blocks({1}));
  EXPECT_EQ(m.data(), std::vector<float>{1.0F});
}

TEST(Resample, CausalStaysLowerTriangularAndNeverReadsAboveTheDiagonal) {
  MixingMatrix m = arbitrary(6);
  for (int i = 0; i < 6; ++i) {
    for (int j = i + 1; j < 6; ++j) m.at(i, j) = std::nanf("");
  }
  for (const std::int64_t size : {1, 3, 6, 7, 12, 31}) {
    for (const bool keep : {false, true}) {
      const auto moved = m.resample(blocks({6}), blocks({size}),
                                    {.causal = true, .keep_row_sums = keep});
      for (std::int64_t i = 0; i < size; ++i) {
        for (std::int64_t j = 0; j <= i; ++j) EXPECT_GT(moved.at(i, j), 0) << i << ' ' << j;
        for (std::int64_t j = i + 1; j < size; ++j) EXPECT_EQ(moved.at(i, j), 0);
      }
    }
  }
}

TEST(Resample, CausalUniformStaysCausalUniform) {
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{{8, 32}, {32, 8}, {5, 7}}) {
    const auto moved = MixingMatrix::causal_uniform(blocks({from}))
                           .resample(blocks({from}), blocks({to}), {.causal = true});
    const auto expected = MixingMatrix::causal_uniform(blocks({to}));
    for (std::size_t e = 0; e < expected.data().size(); ++e) {
      EXPECT_NEAR(moved.data()[e], expected.data()[e], 1e-6);
    }
  }
}

TEST(Resample, AxesThatStayAsTheyAreDoNotSpreadNaN) {
  MixingMatrix m = arbitrary(4);
  for (int j = 0; j < 4; ++j) m.at(2, j) = std::nanf("");  // a query block of the second row
  const auto moved = m.resample(blocks({2, 2}), blocks({2, 4}));
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) EXPECT_GT(moved.at(i, j), 0) << i << ' ' << j;
    EXPECT_TRUE(std::isnan(moved.at(4, j)));
  }
}

TEST(Resample, RefusesLayoutsThatDoNotFit) {
  const MixingMatrix m = arbitrary(6);
  EXPECT_REFUSED(m.resample(blocks({6}), blocks({2, 3})), "same number of axes");
  EXPECT_REFUSED(m.resample(blocks({5}), blocks({8})), "5 blocks, the matrix is 6 x 6");
  EXPECT_REFUSED(MixingMatrix::constant(6, 3, 1).resample(blocks({6}), blocks({8})), "6 x 3");
}

TEST(Toeplitz, NormalizedConstantIsExactlyCausalUniform) {
  const auto toeplitz = ToeplitzMixing::causal({1}, true);
  const auto expected = MixingMatrix::causal_uniform(blocks({50}));
  EXPECT_EQ(toeplitz.matrix(blocks({50})).data(), expected.data());
  for (std::int64_t i = 0; i < 50; ++i) {
    const std::vector<float> row = toeplitz.causal_row(i);
    ASSERT_EQ(static_cast<std::int64_t>(row.size()), i + 1);
    for (std::int64_t j = 0; j <= i; ++j) EXPECT_EQ(row[j], expected.at(i, j));
  }
}

TEST(Toeplitz, OffsetsPastTheRadiusTakeTheWeightAtTheRadius) {
  const auto causal = ToeplitzMixing::causal({4, 2, 1});
  EXPECT_EQ(causal.at({0}), 4);
  EXPECT_EQ(causal.at({2}), 1);
  EXPECT_EQ(causal.at({1000000}), 1);
  EXPECT_EQ(causal.at({-1}), 0);
  EXPECT_EQ(causal.at({-1000000}), 0);
  EXPECT_EQ(causal.causal_row(4), (std::vector<float>{1, 1, 1, 2, 4}));
  const ToeplitzMixing both({1}, {3, 4, 5});
  EXPECT_EQ(both.matrix(blocks({3})).data(), (std::vector<float>{4, 3, 3, 5, 4, 3, 5, 5, 4}));
  EXPECT_EQ(ToeplitzMixing::causal({7}).at({-1}), 0);  // one weight alone is causal too
}

TEST(Toeplitz, MatrixAndCausalRowAgree) {
  for (const bool normalize : {false, true}) {
    const auto toeplitz = ToeplitzMixing::causal({.5F, .3F, .2F, .05F}, normalize);
    const auto matrix = toeplitz.matrix(blocks({9}));
    for (std::int64_t i = 0; i < 9; ++i) {
      const auto row = toeplitz.causal_row(i);
      for (std::int64_t j = 0; j < 9; ++j) EXPECT_EQ(matrix.at(i, j), j <= i ? row[j] : 0);
      if (normalize) {
        EXPECT_NEAR(row_sum(matrix, i), 1, 1e-6);
      }
    }
  }
  EXPECT_EQ(ToeplitzMixing::causal({0}, true).causal_row(1), (std::vector<float>{0, 0}));
}

TEST(Toeplitz, RoundTripsThroughAMatrixIn1To3Dimensions) {
  for (const Counts& counts : {Counts{5}, Counts{3, 4}, Counts{2, 3, 3}, Counts{1, 1}}) {
    const BlockLayout layout = blocks(counts);
    std::size_t entries = 1;
    Counts radius;
    for (const std::int64_t count : counts) {
      radius.push_back(count - 1);
      entries *= 2 * count - 1;
    }
    std::vector<float> weights(entries);
    for (std::size_t e = 0; e < entries; ++e) weights[e] = static_cast<float>(e * e % 97);
    const MixingMatrix matrix = ToeplitzMixing(radius, weights).matrix(layout);
    const ToeplitzMixing back = matrix.to_toeplitz(layout);
    EXPECT_EQ(back.radius(), radius);
    EXPECT_EQ(back.weights(), weights);
    EXPECT_EQ(back.matrix(layout).data(), matrix.data());
  }
}

TEST(Toeplitz, AuthorsWeightsBeforeNormalisationDependOnlyOnTheOffset) {
  const BlockLayout layout = blocks({3, 4});
  const auto gaussian = MixingMatrix::authors(layout, Transform::gaussian);
  EXPECT_EQ(gaussian.to_toeplitz(layout).matrix(layout).data(), gaussian.data());
}

TEST(Toeplitz, TakesTheMeanOfEachOffset) {
  const std::vector<float> w{1, 10, 2, 3};
  const auto m = MixingMatrix::from(w.data(), 0, 2, 2);
  EXPECT_EQ(m.to_toeplitz(blocks({2})).weights(), (std::vector<float>{10, 2, 2}));
  EXPECT_EQ(m.to_toeplitz(blocks({2}), true).weights(), (std::vector<float>{0, 2, 2}));
  EXPECT_FALSE(m.to_toeplitz(blocks({2})).normalizes_rows());
}

TEST(Toeplitz, CausalNeverReadsAboveTheDiagonal) {
  auto m = ToeplitzMixing::causal({4, 2, 1}).matrix(blocks({5}));
  for (int i = 0; i < 5; ++i) {
    for (int j = i + 1; j < 5; ++j) m.at(i, j) = std::nanf("");
  }
  const auto back = m.to_toeplitz(blocks({5}), true);
  EXPECT_EQ(back.causal_row(8), (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 2, 4}));
}

TEST(Toeplitz, RefusesTablesAndLayoutsThatDoNotFit) {
  const auto huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_REFUSED(ToeplitzMixing({}, {1}), "1 to 3 axes");
  EXPECT_REFUSED(ToeplitzMixing({0, 0, 0, 0}, {1}), "1 to 3 axes");
  EXPECT_REFUSED(ToeplitzMixing({-1}, {1}), "0 or more");
  EXPECT_REFUSED(ToeplitzMixing({1}, {1, 2}), "too few");
  EXPECT_REFUSED(ToeplitzMixing({1}, {1, 2, 3, 4}), "expected 3, got 4");
  EXPECT_REFUSED(ToeplitzMixing({huge}, {1}), "too few");
  EXPECT_REFUSED(ToeplitzMixing({1, huge / 2}, {1, 2, 3}), "too few");
  EXPECT_REFUSED(ToeplitzMixing::causal({}), "at least one");
  const auto line = ToeplitzMixing::causal({1});
  EXPECT_REFUSED(line.at({0, 0}), "expected 1 numbers, got 2");
  EXPECT_REFUSED(line.causal_row(-1), "0 or more");
  EXPECT_REFUSED(line.causal_row(huge - 1), "larger than");
  EXPECT_REFUSED(line.matrix(blocks({2, 2})), "2 axes");
  EXPECT_REFUSED(ToeplitzMixing({0, 0}, {1}).causal_row(0), "1 axis");
  EXPECT_REFUSED(arbitrary(4).to_toeplitz(blocks({5})), "5 blocks");
  EXPECT_REFUSED(arbitrary(4).to_toeplitz(blocks({2, 2}), true), "1 axis");
  EXPECT_REFUSED(arbitrary(4, 2).to_toeplitz(blocks({4})), "2 heads");
}

}  // namespace
}  // namespace mhla
