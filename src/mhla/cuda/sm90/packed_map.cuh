// phi on fragments of bf16 pairs, in registers.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/feature_map.cuh"
#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda::sm90 {

// All ones in the halves of x that are greater than those of y.
__device__ __forceinline__ std::uint32_t greater_bf16x2(std::uint32_t x, std::uint32_t y) {
  std::uint32_t mask;
  asm("set.gt.u32.bf16x2 %0, %1, %2;\n" : "=r"(mask) : "r"(x), "r"(y));
  return mask;
}

// phi on packed pairs, and its derivative as a mask or a factor.
struct PackedMap {
  Map map;
  std::uint32_t eps, threshold;
  __device__ __forceinline__ explicit PackedMap(const Map& m)
      : map(m),
        eps(ptx::pack_bf16(m.add, m.add)),
        threshold(ptx::pack_bf16(m.threshold, m.threshold)) {}

  template <int kSteps>
  __device__ __forceinline__ void apply(std::uint32_t (&a)[kSteps][4]) const {
    if (map.identity) return;
    if (map.elu1) {
#pragma unroll
      for (int i = 0; i < kSteps * 4; ++i) {
        std::uint32_t& word = a[i / 4][i % 4];
        const float2 x = load_pair(reinterpret_cast<const bf16*>(&word));
        word = ptx::pack_bf16(feature(map, x.x), feature(map, x.y));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      std::uint32_t& word = a[i / 4][i % 4];
      word = ptx::max_bf16x2(ptx::fma_bf16x2(word, 0x3f803f80u, eps), eps);
    }
  }
  // Packed pairs times phi': out[w] holds value(w, 0) and value(w, 1).
  template <int kSteps>
  __device__ __forceinline__ void slopes(std::uint32_t (&out)[kSteps * 4],
                                         const std::uint32_t (&phi)[kSteps][4],
                                         auto&& value) const {
    if (map.elu1) {
#pragma unroll
      for (int w = 0; w < kSteps * 4; ++w) {
        const float2 p = load_pair(reinterpret_cast<const bf16*>(&phi[w / 4][w % 4]));
        out[w] = ptx::pack_bf16(value(w, 0) * fminf(p.x, 1.f), value(w, 1) * fminf(p.y, 1.f));
      }
      return;
    }
#pragma unroll
    for (int w = 0; w < kSteps * 4; ++w) {
      out[w] = ptx::pack_bf16(value(w, 0), value(w, 1)) &
               greater_bf16x2(phi[w / 4][w % 4], threshold);
    }
  }
};

}  // namespace mhla::cuda::sm90
