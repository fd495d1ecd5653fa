// phi on two 16-bit elements at once, rounded to their type, and its derivative from that value.
#pragma once

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/dense_args.h"

namespace mhla::cuda::sm90 {

template <typename T>
__device__ __forceinline__ std::uint32_t pack_pair(float lo, float hi) {
  if constexpr (std::is_same_v<T, bf16>) {
    return ptx::pack_bf16(lo, hi);
  } else {
    return ptx::pack_f16(lo, hi);
  }
}
template <typename T>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t word) {
  return make_float2(to_float(T{static_cast<std::uint16_t>(word)}),
                     to_float(T{static_cast<std::uint16_t>(word >> 16)}));
}

// 1e-6 rounds to 0.998e-6 in bf16 and to 1.013e-6 in f16, whose next value is 1.073e-6.
template <typename T>
inline constexpr std::uint32_t kEpsPair = std::is_same_v<T, bf16> ? 0x35863586u : 0x00110011u;
template <typename T>
inline constexpr float kAboveEps = std::is_same_v<T, bf16> ? 1.0e-6f : 1.04e-6f;

// NaN stays NaN.
template <typename T, Feature kFeature>
__device__ __forceinline__ std::uint32_t feature_pair(std::uint32_t x) {
  if constexpr (kFeature == Feature::identity) return x;
  if constexpr (kFeature == Feature::elu1) {
    const float2 pair = unpack_pair<T>(x);
    return pack_pair<T>(pair.x > 0.f ? pair.x + 1.f : __expf(pair.x),
                        pair.y > 0.f ? pair.y + 1.f : __expf(pair.y));
  }
  std::uint32_t y;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("max.NaN.bf16x2 %0, %1, %2;\n" : "=r"(y) : "r"(x), "r"(0u));
    if constexpr (kFeature == Feature::relu_eps) {
      asm("add.rn.bf16x2 %0, %1, %2;\n" : "=r"(y) : "r"(y), "r"(kEpsPair<T>));
    }
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;\n" : "=r"(y) : "r"(x), "r"(0u));
    if constexpr (kFeature == Feature::relu_eps) {
      asm("add.rn.f16x2 %0, %1, %2;\n" : "=r"(y) : "r"(y), "r"(kEpsPair<T>));
    }
  }
  return y;
}

// All maps but elu1 as one maximum and one addition, with constants for two elements.
template <typename T>
struct PairMap {
  std::uint32_t least, add;

  __device__ __forceinline__ explicit PairMap(Feature feature)
      : least(feature != Feature::identity ? 0u
              : std::is_same_v<T, bf16>    ? 0xff80ff80u
                                           : 0xfc00fc00u),                   // minus infinity
        add(feature == Feature::relu_eps ? kEpsPair<T> : 0x80008000u) {}  // or minus zero
  __device__ __forceinline__ std::uint32_t operator()(std::uint32_t x) const {
    std::uint32_t y;
    if constexpr (std::is_same_v<T, bf16>) {
      asm("max.NaN.bf16x2 %0, %1, %2;\n" : "=r"(y) : "r"(x), "r"(least));
      asm("add.rn.bf16x2 %0, %1, %2;\n" : "=r"(y) : "r"(y), "r"(add));
    } else {
      asm("max.NaN.f16x2 %0, %1, %2;\n" : "=r"(y) : "r"(x), "r"(least));
      asm("add.rn.f16x2 %0, %1, %2;\n" : "=r"(y) : "r"(y), "r"(add));
    }
    return y;
  }
};

// phi'(x) from the rounded phi(x), free of branches: 1 above a threshold, else 0, or phi for elu1.
template <typename T>
struct Slope {
  float threshold, below;

  __device__ explicit Slope(Feature feature) : threshold(0.f), below(0.f) {
    if (feature == Feature::relu_eps) threshold = kAboveEps<T>;
    if (feature == Feature::elu1) threshold = below = 1.f;
    if (feature == Feature::identity) threshold = -__builtin_huge_valf(), below = 1.f;
  }
  __device__ __forceinline__ float operator()(float phi) const {
    return phi > threshold ? 1.f : phi * below;
  }
};

}  // namespace mhla::cuda::sm90
