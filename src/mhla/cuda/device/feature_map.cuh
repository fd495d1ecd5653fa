// phi and its derivative, free of branches for all maps but elu1: phi(x) = max(x, floor) + add.
// The derivative is read off the rounded value of phi, so that a backward kernel needs phi(x) only.
#pragma once

#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda {

struct Map {
  float floor;      // 0 for the ReLUs, minus infinity otherwise
  float add;        // eps of relu_eps
  float up;         // smallest phi of a positive x
  float threshold;  // phi above it has derivative 1, below it 0
  int elu1;         // x > 0 ? x + 1 : exp(x)
  int identity;     // nothing to do
};

inline constexpr float kNoFloor = -__builtin_huge_valf();
inline constexpr Map kIdentity{kNoFloor, 0.f, kNoFloor, kNoFloor, 0, 1};
inline constexpr Map kRelu{0.f, 0.f, 0.f, 0.f, 0, 0};
inline constexpr Map kElu1{kNoFloor, 0.f, kNoFloor, kNoFloor, 1, 0};
// Positive x give at least 1.08e-6: far enough from eps that rounding to f16 or bf16 keeps the two
// apart, and with them the derivative.
inline constexpr Map kReluEps{0.f, 1e-6f, 1.08e-6f, 1.04e-6f, 0, 0};

// NaN stays NaN.
__device__ __forceinline__ float feature(const Map& map, float x) {
  if (map.elu1) return x > 0.f ? x + 1.f : expf(x);
  const float y = (x < map.floor ? map.floor : x) + map.add;
  return x > 0.f ? fmaxf(y, map.up) : y;
}

__device__ __forceinline__ float feature_gradient(const Map& map, float phi) {
  if (map.elu1) return fminf(phi, 1.f);
  return phi > map.threshold ? 1.f : 0.f;
}

// The ReLUs of eight bf16 values, two packed instructions a pair: max(x + eps, eps).
// NOTE: a positive x below 4e-9 rounds to eps here and loses its derivative of one.
__device__ __forceinline__ void relu_bf16(const Map& map, Chunk& chunk) {
  constexpr std::uint32_t kOnes = 0x3f803f80u;
  const std::uint32_t eps = ptx::pack_bf16(map.add, map.add);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    chunk.word[i] = ptx::max_bf16x2(ptx::fma_bf16x2(chunk.word[i], kOnes, eps), eps);
  }
}

}  // namespace mhla::cuda
