// Conversions between f32 and the 16-bit storage types, rounding to nearest even.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "mhla/error.h"
#include "mhla/tensor_view.h"

namespace mhla {

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it one, whatever rounding would do
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float to_float(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact in f32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline Float16 to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: let f32 addition round to a multiple of 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;  // 0.5 has ulp 2^-24
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

inline float to_float(float x) { return x; }
inline double to_float(double x) { return x; }

template <typename T, typename Value>
T from_float(Value x) {
  if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, Float16>) return to_float16(static_cast<float>(x));
  else return static_cast<T>(x);
}

// Calls f with a value of the C++ type that stores the dtype.
template <typename F>
decltype(auto) with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::bf16: return f(BFloat16{});
    case DType::f16: return f(Float16{});
  }
  throw Error(ErrorCode::internal, "[mhla.dtype] a value outside the enumeration");
}

}  // namespace mhla
