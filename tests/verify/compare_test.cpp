// What counts as agreement.
#include "mhla/verify/compare.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mhla::verify {
namespace {

TEST(Compare, ToleratesTheRoundingMassAndNoMore) {
  const std::vector<double> value = {1, 2}, mass = {10, 10};
  const Expected e{.value = value, .mass = mass, .dtype = DType::f64, .stored = DType::f64};
  const double u = 0x1p-53;
  EXPECT_EQ(compare({1, 2}, e).ratio, 0);
  EXPECT_LE(compare({1 + 20 * u, 2}, e).ratio, 1);
  EXPECT_GT(compare({1 + 24 * u, 2}, e).ratio, 1);
}

TEST(Compare, RefusesNanInfinityAndWrongSizes) {
  const std::vector<double> value = {1, 0}, mass = {1, 0};
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const Expected e{.value = value,
                     .mass = mass,
                     .naive = dtype == DType::bf16 ? &value : nullptr,
                     .dtype = dtype,
                     .stored = dtype};
    EXPECT_GT(compare({NAN, 0}, e).ratio, 1);
    EXPECT_GT(compare({1, NAN}, e).ratio, 1);
    EXPECT_GT(compare({1, INFINITY}, e).ratio, 1);
    EXPECT_GT(compare({1}, e).ratio, 1);
  }
}

TEST(Compare, CoarseStorageOfAFineResultIsNoError) {
  const std::vector<double> value = {1.0 / 3}, mass = {1};
  const Expected e{.value = value, .mass = mass, .dtype = DType::f64, .stored = DType::f32};
  EXPECT_EQ(compare({static_cast<float>(1.0 / 3)}, e).ratio, 0);
  EXPECT_GT(compare({static_cast<float>(1.0 / 3) + 1e-7f}, e).ratio, 1);
}

TEST(Compare, LowPrecisionMayErrTwiceAsMuchAsTheNaiveProgram) {
  const std::vector<double> value = {1, 1, 1, 1}, mass = {1, 1, 1, 1};
  const std::vector<double> naive = {1.02, 1, 0.98, 1};
  const Expected e{
      .value = value, .mass = mass, .naive = &naive, .dtype = DType::bf16, .stored = DType::bf16};
  EXPECT_LE(compare({1.03, 1, 1, 1}, e).ratio, 1);
  EXPECT_GT(compare({1.05, 1, 1, 1}, e).ratio, 1);               // largest error
  EXPECT_GT(compare({1.035, 0.965, 1.035, 0.965}, e).ratio, 1);  // root mean square
}

TEST(Compare, LowPrecisionHasAFloorOfOneUlpWhereTheNaiveProgramIsExact) {
  const std::vector<double> value(16, 1.0), mass(16, 1.0);
  const Expected e{
      .value = value, .mass = mass, .naive = &value, .dtype = DType::bf16, .stored = DType::bf16};
  std::vector<double> got = value;
  got[3] += 0x1p-7;
  EXPECT_LE(compare(got, e).ratio, 1.001);
  got[3] += 0x1p-7;
  EXPECT_GT(compare(got, e).ratio, 1);
}

TEST(Compare, NoiseLeftByCancellationMayNotExceedTwiceTheNaiveEither) {
  const std::vector<double> value = {0, 1e-9}, mass = {1, 1}, naive = {0.01, -0.02};
  const Expected e{
      .value = value, .mass = mass, .naive = &naive, .dtype = DType::bf16, .stored = DType::bf16};
  EXPECT_GT(compare({-0.1, 0.1}, e).ratio, 1);
  EXPECT_LE(compare({-0.02, 0.03}, e).ratio, 1);
}

}  // namespace
}  // namespace mhla::verify
