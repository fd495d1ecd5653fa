// The storage types as the oracle sees them.
#include "mhla/verify/rounding.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mhla::verify {
namespace {

TEST(Rounding, EveryFinite16BitPatternSurvivesLoadAndStore) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      const double value = load(dtype, &pattern);
      if (std::isnan(value)) continue;
      std::uint16_t back = 0;
      store(dtype, round_to(dtype, value), &back);
      ASSERT_EQ(back, pattern) << name(dtype) << " value " << value;
    }
  }
}

TEST(Rounding, GoesToTheNearestAndToEvenInTheMiddle) {
  EXPECT_EQ(round_to(DType::bf16, 1 + 0x1p-8), 1.0);             // half way, 1 is even
  EXPECT_EQ(round_to(DType::bf16, 1 + 3 * 0x1p-8), 1 + 0x1p-6);  // half way, upper is even
  EXPECT_EQ(round_to(DType::bf16, 1 + 0x1p-8 + 0x1p-20), 1 + 0x1p-7);
  EXPECT_EQ(round_to(DType::f16, 1 + 0x1p-11), 1.0);
  EXPECT_EQ(round_to(DType::f16, 1 + 0x1p-10), 1 + 0x1p-10);
  EXPECT_EQ(round_to(DType::f16, 0x1p-25), 0.0);  // half of the smallest subnormal
  EXPECT_EQ(round_to(DType::f16, 1e5), INFINITY);
  EXPECT_EQ(round_to(DType::f32, 0.1), static_cast<double>(0.1f));
  EXPECT_EQ(round_to(DType::f64, 0.1), 0.1);
}

TEST(Rounding, UnitRoundoffIsTheLargestRelativeError) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const double u = unit_roundoff(dtype);
    EXPECT_EQ(round_to(dtype, 1 + u), 1.0) << name(dtype);
    EXPECT_EQ(round_to(dtype, 1 + 2 * u), 1 + 2 * u) << name(dtype);
  }
}

}  // namespace
}  // namespace mhla::verify
