// Mixing matrices: initial values (golden numbers of spec.md 1.6), constraint, argument checks.
#include "mhla/mixing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "mhla/error.h"

namespace mhla {
namespace {

constexpr double kPrinted = 5.1e-7;  // spec.md prints six digits; half of the last, plus f32

// A layout of the given number of blocks per axis, two tokens wide each.
BlockLayout blocks(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> size;
  for (const std::int64_t count : counts) size.push_back(2 * count);
  return BlockLayout::grid(size, {.blocks = counts});
}

std::vector<double> row_sums(const MixingMatrix& m) {
  std::vector<double> sums(m.rows());
  for (std::int64_t i = 0; i < m.rows(); ++i) {
    for (std::int64_t j = 0; j < m.cols(); ++j) sums[i] += m.at(i, j);
  }
  return sums;
}

std::vector<double> column_sums(const MixingMatrix& m) {
  std::vector<double> sums(m.cols());
  for (std::int64_t i = 0; i < m.rows(); ++i) {
    for (std::int64_t j = 0; j < m.cols(); ++j) sums[j] += m.at(i, j);
  }
  return sums;
}

void expect_row(const MixingMatrix& m, std::int64_t row, const std::vector<double>& expected) {
  ASSERT_EQ(m.cols(), static_cast<std::int64_t>(expected.size()));
  for (std::int64_t j = 0; j < m.cols(); ++j) {
    EXPECT_NEAR(m.at(row, j), expected[j], kPrinted) << "row " << row << ", column " << j;
  }
}

// Rank by elimination with full pivoting.
std::int64_t rank(const MixingMatrix& m) {
  const std::int64_t n = m.rows();
  std::vector<double> a(m.data().begin(), m.data().end());
  double largest = 0;
  for (std::int64_t step = 0; step < n; ++step) {
    std::int64_t row = step;
    std::int64_t col = step;
    for (std::int64_t i = step; i < n; ++i) {
      for (std::int64_t j = step; j < n; ++j) {
        if (std::abs(a[i * n + j]) > std::abs(a[row * n + col])) row = i, col = j;
      }
    }
    largest = std::max(largest, std::abs(a[row * n + col]));
    // Weights were rounded to f32, so a pivot of that size says nothing.
    if (std::abs(a[row * n + col]) < largest * n * std::numeric_limits<float>::epsilon())
      return step;
    for (std::int64_t j = 0; j < n; ++j) std::swap(a[step * n + j], a[row * n + j]);
    for (std::int64_t i = 0; i < n; ++i) std::swap(a[i * n + step], a[i * n + col]);
    for (std::int64_t i = step + 1; i < n; ++i) {
      const double factor = a[i * n + step] / a[step * n + step];
      for (std::int64_t j = step; j < n; ++j) a[i * n + j] -= factor * a[step * n + j];
    }
  }
  return n;
}

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

#define EXPECT_REFUSED(call, part)                                                          \
  EXPECT_PRED2([](const std::string& all,                                                   \
                  const std::string& some) { return all.find(some) != std::string::npos; }, \
               message_of([&] { (void)(call); }), part)

TEST(MixingInit, AuthorsLinearMatchesThePrintedRowsOf4x4Blocks) {
  const MixingMatrix m = MixingMatrix::authors(blocks({4, 4}), Transform::linear);
  expect_row(m, 0,
             {.144361, .091118, .063018, .042282, .091118, .066625, .047266, .030358, .063018,
              .047266, .033313, .017902, .042282, .030358, .017902, 0});
  expect_row(m, 5,
             {.09624, .091118, .079479, .068276, .091118, .099938, .076382, .063018, .079479,
              .076382, .066625, .056385, .068276, .063018, .056385, .04812});
}

TEST(MixingInit, LocalityMatchesThePrintedRowsOf4x4Blocks) {
  const MixingMatrix m = MixingMatrix::locality(blocks({4, 4}));
  expect_row(m, 0,
             {.144361, .110335, .076308, .042282, .110335, .09624, .068276, .036761, .076308,
              .068276, .04812, .021678, .042282, .036761, .021678, 0});
  expect_row(m, 5,
             {.071334, .092227, .071334, .029879, .092227, .142668, .092227, .041786, .071334,
              .092227, .071334, .029879, .029879, .041786, .029879, 0});
}

TEST(MixingInit, BothFormsMatchThePrintedValuesOf2x2Blocks) {
  for (const MixingMatrix& m : {MixingMatrix::locality(blocks({2, 2})),
                                MixingMatrix::authors(blocks({2, 2}), Transform::linear)}) {
    expect_row(m, 0, {.630602, .184699, .184699, 0});
    expect_row(m, 1, {.184699, .630602, 0, .184699});
    expect_row(m, 3, {0, .184699, .184699, .630602});
  }
}

TEST(MixingInit, AuthorsRowSumsMatchThePrintedExtremes) {
  const auto extremes = [](const std::vector<std::int64_t>& counts) {
    const auto sums = row_sums(MixingMatrix::authors(blocks(counts), Transform::linear));
    const auto [low, high] = std::minmax_element(sums.begin(), sums.end());
    return std::pair(*low, *high);
  };
  EXPECT_NEAR(extremes({4, 4}).first, .828190, kPrinted);
  EXPECT_NEAR(extremes({4, 4}).second, 1.180242, kPrinted);
  EXPECT_NEAR(extremes({3, 5, 10}).first, .782397, kPrinted);
  EXPECT_NEAR(extremes({3, 5, 10}).second, 1.179575, kPrinted);
}

TEST(MixingInit, EveryListedLayoutGivesFullRank) {
  for (const std::vector<std::int64_t>& counts : std::vector<std::vector<std::int64_t>>{
           {2, 2}, {4, 4}, {5, 5}, {7, 7}, {8, 8}, {3, 5, 10}, {7, 3, 5}}) {
    const BlockLayout layout = blocks(counts);
    EXPECT_EQ(rank(MixingMatrix::locality(layout)), layout.mixing_size()) << layout.to_string();
    EXPECT_EQ(rank(MixingMatrix::authors(layout, Transform::linear)), layout.mixing_size())
        << layout.to_string();
  }
  EXPECT_EQ(rank(MixingMatrix::uniform(blocks({4, 4}))), 1);  // the measure can tell
}

TEST(MixingInit, LocalityRowsSumToOneAndLieInTheUnitInterval) {
  for (const std::vector<std::int64_t>& counts : std::vector<std::vector<std::int64_t>>{
           {1}, {2}, {9}, {1, 7}, {4, 4}, {3, 5, 10}, {2, 1, 3}}) {
    const MixingMatrix m = MixingMatrix::locality(blocks(counts));
    for (const double sum : row_sums(m)) EXPECT_NEAR(sum, 1, 1e-6);
    for (const float weight : m.data()) EXPECT_TRUE(weight >= 0 && weight <= 1);
  }
}

TEST(MixingInit, AuthorsColumnsSumToOneExceptGaussian) {
  for (const Transform transform :
       {Transform::linear, Transform::cos, Transform::exp, Transform::local}) {
    for (const std::vector<std::int64_t>& counts :
         std::vector<std::vector<std::int64_t>>{{6}, {4, 4}, {3, 5, 2}}) {
      for (const double sum : column_sums(MixingMatrix::authors(blocks(counts), transform))) {
        EXPECT_NEAR(sum, 1, 1e-6) << name(transform);
      }
    }
  }
  const MixingMatrix gaussian = MixingMatrix::authors(blocks({6}), Transform::gaussian);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(gaussian.at(i, i), 1.0F);
}

TEST(MixingInit, TransformsHaveTheirClosedFormsOnThreeBlocks) {
  const BlockLayout layout = blocks({3});  // distances 0, 1, 2
  const double pi = std::acos(-1.0);
  const auto cosine = MixingMatrix::authors(layout, Transform::cos);
  EXPECT_NEAR(cosine.at(2, 0), std::cos(pi / 4) / (1 + std::cos(pi / 8) + std::cos(pi / 4)), 1e-7);
  EXPECT_NEAR(cosine.at(0, 1), std::cos(pi / 8) / (1 + 2 * std::cos(pi / 8)), 1e-7);
  const auto exp3 = MixingMatrix::authors(layout, Transform::exp);
  EXPECT_NEAR(exp3.at(2, 0), std::exp(-2 / 3.) / (1 + std::exp(-1 / 3.) + std::exp(-2 / 3.)), 1e-7);
  const auto exp1 = MixingMatrix::authors(layout, Transform::exp, {.exp_sigma = 1});
  EXPECT_NEAR(exp1.at(0, 1), std::exp(-1.) / (1 + 2 * std::exp(-1.)), 1e-7);
  const auto gaussian = MixingMatrix::authors(layout, Transform::gaussian);  // sigma = 2/3
  EXPECT_NEAR(gaussian.at(0, 1), std::exp(-9. / 8), 1e-7);
  EXPECT_NEAR(gaussian.at(0, 2), std::exp(-9. / 2), 1e-7);
  const auto local = MixingMatrix::authors(layout, Transform::local);
  EXPECT_FLOAT_EQ(local.at(0, 0), 1 / 2.F);
  EXPECT_FLOAT_EQ(local.at(0, 1), 1 / 3.F);
  EXPECT_EQ(local.at(0, 2), 0.0F);
}

TEST(MixingInit, LocalSeesA3x3NeighbourhoodIn2DAnd19Of27In3D) {
  const auto neighbours = [](const MixingMatrix& m, std::int64_t row) {
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < m.cols(); ++j) count += m.at(row, j) > 0;
    return count;
  };
  EXPECT_EQ(neighbours(MixingMatrix::authors(blocks({5, 5}), Transform::local), 12), 9);
  EXPECT_EQ(neighbours(MixingMatrix::authors(blocks({3, 3, 3}), Transform::local), 13), 19);
}

TEST(MixingInit, LocalWithAHugeThresholdIsUniform) {
  const BlockLayout layout = blocks({4, 4});
  for (const double huge : {100.0, std::numeric_limits<double>::infinity()}) {
    const auto m = MixingMatrix::authors(layout, Transform::local, {.local_threshold = huge});
    EXPECT_EQ(m.data(), MixingMatrix::uniform(layout).data());
  }
}

TEST(MixingInit, ASingleBlockHasTheWeightOne) {
  for (const std::vector<std::int64_t>& counts :
       std::vector<std::vector<std::int64_t>>{{1}, {1, 1}, {1, 1, 1}}) {
    const BlockLayout layout = blocks(counts);
    const std::vector<float> one{1.0F};
    EXPECT_EQ(MixingMatrix::locality(layout).data(), one);
    EXPECT_EQ(MixingMatrix::uniform(layout).data(), one);
    EXPECT_EQ(MixingMatrix::causal_uniform(layout).data(), one);
    for (const Transform transform : {Transform::linear, Transform::cos, Transform::exp,
                                      Transform::gaussian, Transform::local}) {
      EXPECT_EQ(MixingMatrix::authors(layout, transform).data(), one) << name(transform);
    }
  }
}

TEST(MixingInit, AxesOfOneBlockDoNotMatter) {
  const auto line = MixingMatrix::locality(blocks({5}));
  EXPECT_EQ(MixingMatrix::locality(blocks({1, 5})).data(), line.data());
  EXPECT_EQ(MixingMatrix::locality(blocks({5, 1})).data(), line.data());
  EXPECT_EQ(MixingMatrix::locality(blocks({1, 5, 1})).data(), line.data());
}

TEST(MixingInit, BlockSizesDoNotMatterOnlyTheirNumber) {
  const auto ragged = BlockLayout::grid({14, 13}, {.block = {4, 4}});  // 4 x 4 blocks
  EXPECT_EQ(MixingMatrix::locality(ragged).data(), MixingMatrix::locality(blocks({4, 4})).data());
}

TEST(MixingInit, UniformAndCausalUniformHaveTheirValues) {
  const auto cross = MixingMatrix::uniform(blocks({2}), blocks({4, 2}));
  EXPECT_EQ(cross.rows(), 2);
  EXPECT_EQ(cross.cols(), 8);
  for (const float weight : cross.data()) EXPECT_EQ(weight, 0.125F);
  const auto causal = MixingMatrix::causal_uniform(blocks({3}));
  EXPECT_EQ(causal.data(), (std::vector<float>{1, 0, 0, .5F, .5F, 0, 1 / 3.F, 1 / 3.F, 1 / 3.F}));
}

TEST(MixingInit, PackedSequencesTakeTheLongest) {
  const auto packed = BlockLayout::packed({0, 100, 132, 132, 139}, {.block = {32}});
  EXPECT_EQ(MixingMatrix::locality(packed).data(), MixingMatrix::locality(blocks({4})).data());
}

TEST(MixingInit, PackedGridsShareOneMatrix) {
  const auto packed = BlockLayout::packed_grids({{8, 8}, {16, 12}}, {.blocks = {4, 4}});
  EXPECT_EQ(MixingMatrix::locality(packed).data(), MixingMatrix::locality(blocks({4, 4})).data());
}

TEST(MixingInit, TransformsHaveNamesThatParseBack) {
  for (const Transform transform :
       {Transform::linear, Transform::cos, Transform::exp, Transform::gaussian, Transform::local}) {
    EXPECT_EQ(parse_transform(name(transform)), transform);
  }
  EXPECT_REFUSED(parse_transform("cosine"), "linear, cos, exp, gaussian, local, got 'cosine'");
  EXPECT_REFUSED(name(static_cast<Transform>(9)), "unknown transform 9");
}

TEST(MixingInit, TransformOptionsWithoutAMeaningAreRefused) {
  const BlockLayout layout = blocks({3});
  const double nan = std::nan("");
  for (const double sigma : {0.0, -1.0, nan}) {
    EXPECT_REFUSED(MixingMatrix::authors(layout, Transform::exp, {.exp_sigma = sigma}),
                   "exp_sigma");
  }
  for (const double threshold : {-0.5, nan}) {
    EXPECT_REFUSED(MixingMatrix::authors(layout, Transform::local, {.local_threshold = threshold}),
                   "local_threshold");
  }
}

TEST(MixingMatrix, KeepsGivenWeightsAndShowsThemAsATensor) {
  const std::vector<float> weights{1, 2, 3, 4, 5, 6};
  MixingMatrix shared = MixingMatrix::from(weights.data(), 0, 2, 3);
  EXPECT_EQ(shared.at(1, 0), 4);
  shared.at(1, 0) = 9;
  EXPECT_EQ(shared.at(1, 0), 9);
  EXPECT_EQ(weights[3], 4);  // a copy
  EXPECT_EQ(shared.view().rank, 2);
  EXPECT_EQ(shared.view().shape[1], 3);
  const MixingMatrix heads = MixingMatrix::from(weights.data(), 3, 1, 2);
  EXPECT_EQ(heads.at(0, 1, 2), 6);
  EXPECT_EQ(heads.view().rank, 3);
  EXPECT_EQ(heads.view().strides[0], 2);
}

TEST(MixingMatrix, RepeatsItselfPerHead) {
  const MixingMatrix m = MixingMatrix::locality(blocks({3}));
  const MixingMatrix repeated = m.repeated_per_head(2);
  EXPECT_EQ(repeated.heads(), 2);
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) EXPECT_EQ(repeated.at(i, j, 1), m.at(i, j));
  }
  EXPECT_EQ(repeated.repeated_per_head(2).data(), repeated.data());
  EXPECT_REFUSED(repeated.repeated_per_head(3), "each of 2 heads");
  EXPECT_REFUSED(m.repeated_per_head(0), "expected 1 or more");
}

TEST(MixingMatrix, RefusesSizesAndIndicesWithoutAMeaning) {
  const float weight = 1;
  const auto huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_REFUSED(MixingMatrix::from(nullptr, 0, 1, 1), "null");
  EXPECT_REFUSED(MixingMatrix::from(&weight, -1, 1, 1), "heads");
  EXPECT_REFUSED(MixingMatrix::from(&weight, 0, 0, 1), "at least one row");
  EXPECT_REFUSED(MixingMatrix::from(&weight, 0, 1, -4), "at least one row");
  EXPECT_REFUSED(MixingMatrix::constant(huge, huge, 1), "larger than");
  EXPECT_REFUSED(MixingMatrix::from(&weight, huge, 1, 1), "larger than");
  const MixingMatrix m = MixingMatrix::constant(2, 3, 1);
  EXPECT_REFUSED(m.at(2, 0), "row 2");
  EXPECT_REFUSED(m.at(0, 3), "column 3");
  EXPECT_REFUSED(m.at(-1, 0), "row -1");
  EXPECT_REFUSED(m.at(0, 0, 1), "head 1");
}

TEST(Constrain, ClampsWeightsIntoTheInterval) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> weights{-0.5F, 0.25F, 1.5F, inf};
  constrain(TensorView::of(weights.data(), {2, 2}), {});
  EXPECT_EQ(weights, (std::vector<float>{0, 0.25F, 1, 1}));
  constrain(TensorView::of(weights.data(), {1, 2, 2}), {.low = 0.125, .high = 0.5});
  EXPECT_EQ(weights, (std::vector<float>{0.125F, 0.25F, 0.5F, 0.5F}));
}

TEST(Constrain, RenormalizesRowsAfterClamping) {
  MixingMatrix m = MixingMatrix::from(std::vector<float>{-3, .5F, 2, 0, -1, 0}.data(), 0, 2, 3);
  m.constrain({.renormalize_rows = true});
  EXPECT_EQ(m.data(), (std::vector<float>{0, 1 / 3.F, 2 / 3.F, 1 / 3.F, 1 / 3.F, 1 / 3.F}));
}

TEST(Constrain, FollowsStridesAndLeavesTheRestAlone) {
  std::vector<float> weights{2, 7, 2, 7, 2, 7, 2, 7};
  constrain(TensorView::strided(weights.data(), {2, 2}, {4, 2}), {});
  EXPECT_EQ(weights, (std::vector<float>{1, 7, 1, 7, 1, 7, 1, 7}));
}

TEST(Constrain, NamesTheNaNWeightAndTouchesNothing) {
  std::vector<float> weights{5, 5, 5, 5, 5, 5};
  weights[4] = std::nanf("");
  EXPECT_REFUSED(constrain(TensorView::of(weights.data(), {2, 3}), {}), "weight [1, 1] is NaN");
  EXPECT_REFUSED(constrain(TensorView::of(weights.data(), {3, 1, 2}), {}), "[2, 0, 0] is NaN");
  EXPECT_EQ(weights[0], 5);
}

TEST(Constrain, RefusesBoundsAndTensorsWithoutAMeaning) {
  std::vector<float> weights(4, 0.5F);
  std::vector<double> doubles(4, 0.5);
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  const TensorView m = TensorView::of(weights.data(), {2, 2});
  EXPECT_REFUSED(constrain(m, {.low = 1, .high = 0}), "low 1 is above high 0");
  EXPECT_REFUSED(constrain(m, {.low = nan}), "must be numbers");
  EXPECT_REFUSED(constrain(m, {.high = nan}), "must be numbers");
  EXPECT_REFUSED(constrain(m, {.low = -1, .renormalize_rows = true}), "low >= 0");
  EXPECT_REFUSED(constrain(m, {.high = 0, .renormalize_rows = true}), "high > 0");
  EXPECT_REFUSED(constrain(TensorView::of(doubles.data(), {2, 2}), {}), "expected f32");
  EXPECT_REFUSED(constrain(TensorView::of(weights.data(), {4}), {}), "rank 2 or 3");
  EXPECT_REFUSED(constrain(TensorView::of(weights.data(), {2, 2}, Device::cuda(0)), {}), "host");
  EXPECT_REFUSED(constrain(TensorView::of<float>(nullptr, {2, 2}), {}), "null");
  weights[1] = std::numeric_limits<float>::infinity();
  EXPECT_REFUSED(constrain(m, {.high = inf, .renormalize_rows = true}), "[0, 1] is infinite");
}

}  // namespace
}  // namespace mhla
