// Rounding to nearest and the bit patterns of the four dtypes.
#include "mhla/verify/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "mhla/error.h"

namespace mhla::verify {
namespace {

// Rounds to `digits` binary digits, ties to even; below 2^lowest_exponent the spacing is constant.
double round_to_digits(double value, int digits, int lowest_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), lowest_exponent);
  const double spacing = std::ldexp(1.0, exponent - digits + 1);
  return std::nearbyint(value / spacing) * spacing;
}

}  // namespace

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
  }
  fail(ErrorCode::internal, "verify", "unknown dtype");
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f64: return value;
    case DType::f32: return static_cast<float>(value);
    case DType::bf16: return round_to_digits(value, 8, -126);
    case DType::f16: {
      const double rounded = round_to_digits(value, 11, -14);
      return std::abs(rounded) > 65504 ? std::copysign(INFINITY, value) : rounded;
    }
  }
  fail(ErrorCode::internal, "verify", "unknown dtype");
}

void store(DType dtype, double value, void* to) {
  if (dtype == DType::f64) {
    std::memcpy(to, &value, sizeof value);
  } else if (dtype == DType::f32 || dtype == DType::bf16) {
    const float narrow = static_cast<float>(value);
    const auto bits = std::bit_cast<std::uint32_t>(narrow);
    const auto upper = static_cast<std::uint16_t>(bits >> 16);  // bf16 is the upper half of f32
    if (dtype == DType::f32) {
      std::memcpy(to, &bits, sizeof bits);
    } else {
      std::memcpy(to, &upper, sizeof upper);
    }
  } else {
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::abs(value);
    int bits = 0x7e00;  // NaN
    if (std::isinf(size)) {
      bits = 0x7c00;
    } else if (size < 0x1p-14) {
      bits = static_cast<int>(size * 0x1p24);  // subnormal: units of 2^-24
    } else if (size <= 65504) {
      const int exponent = std::ilogb(size);
      bits = (exponent + 15) * 1024 + static_cast<int>((std::ldexp(size, -exponent) - 1) * 1024);
    }
    const auto half = static_cast<std::uint16_t>(sign | bits);
    std::memcpy(to, &half, sizeof half);
  }
}

double load(DType dtype, const void* from) {
  if (dtype == DType::f64) {
    double value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  if (dtype == DType::bf16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double size = exponent == 0 ? fraction * 0x1p-24
                              : std::ldexp(1 + fraction / 1024.0, exponent - 15);
  if (exponent == 31) size = fraction == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -size : size;
}

}  // namespace mhla::verify
