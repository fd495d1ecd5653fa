// Elements of one floating type as those of another.
#include "io/precision.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "mhla/core/half.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

float widened(float x) { return x; }
double widened(double x) { return x; }
float widened(BFloat16 x) { return to_float(x); }
float widened(Float16 x) { return to_float(x); }
// The upper half of an f16.
float widened(Float8E5M2 x) {
  return to_float(Float16{static_cast<std::uint16_t>(static_cast<unsigned>(x.bits) << 8)});
}
// No infinities; all ones is NaN.
float widened(Float8E4M3 x) {
  const unsigned exponent = (x.bits >> 3) & 15u, mantissa = x.bits & 7u;
  float value = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                              : std::ldexp(1.0f + static_cast<float>(mantissa) / 8,
                                           static_cast<int>(exponent) - 7);
  if (exponent == 15 && mantissa == 7) value = std::bit_cast<float>(0x7fc00000u);
  return std::copysign(value, x.bits & 0x80u ? -1.0f : 1.0f);
}

template <typename From, typename To>
std::uint64_t convert(const char* from, char* to, std::size_t count) {
  std::uint64_t lost = 0;
  for (std::size_t i = 0; i < count; ++i) {
    From stored;
    std::memcpy(&stored, from + i * sizeof(From), sizeof(From));
    const auto value = widened(stored);
    const To rounded = from_float<To>(value);
    lost += std::isfinite(value) && !std::isfinite(to_float(rounded));
    std::memcpy(to + i * sizeof(To), &rounded, sizeof(To));
  }
  return lost;
}

template <typename From>
std::uint64_t convert_from(const char* from, ScalarType type, char* to, std::size_t count) {
  switch (type) {
    case ScalarType::f64: return convert<From, double>(from, to, count);
    case ScalarType::f32: return convert<From, float>(from, to, count);
    case ScalarType::f16: return convert<From, Float16>(from, to, count);
    case ScalarType::bf16: return convert<From, BFloat16>(from, to, count);
    default: fail(ErrorCode::internal, "io", "elements are not rounded to ", name(type));
  }
}

}  // namespace

bool can_round_to(ScalarType type) {
  return type == ScalarType::f64 || type == ScalarType::f32 || type == ScalarType::f16 ||
         type == ScalarType::bf16;
}

bool is_floating(ScalarType type) {
  return can_round_to(type) || type == ScalarType::f8_e4m3 || type == ScalarType::f8_e5m2;
}

ScalarType parse_precision(std::string_view text) {
  for (const ScalarType type :
       {ScalarType::f64, ScalarType::f32, ScalarType::f16, ScalarType::bf16}) {
    if (text == name(type) || parse_torch_dtype(text) == type) return type;
  }
  fail("io", "dtype: expected f32, bf16, f16 or f64, got '", text, "'");
}

std::uint64_t convert_elements(const void* from, ScalarType from_type, void* to, ScalarType to_type,
                               std::size_t count) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  switch (from_type) {
    case ScalarType::f64: return convert_from<double>(source, to_type, target, count);
    case ScalarType::f32: return convert_from<float>(source, to_type, target, count);
    case ScalarType::f16: return convert_from<Float16>(source, to_type, target, count);
    case ScalarType::bf16: return convert_from<BFloat16>(source, to_type, target, count);
    case ScalarType::f8_e4m3: return convert_from<Float8E4M3>(source, to_type, target, count);
    case ScalarType::f8_e5m2: return convert_from<Float8E5M2>(source, to_type, target, count);
    default: fail(ErrorCode::internal, "io", "no floating type: ", name(from_type));
  }
}

}  // namespace mhla::io
