// stmatrix: registers in the layout of accumulators to 8x8 tiles in shared memory (sm_90).
#pragma once

#include "mhla/cuda/device/ptx.cuh"

namespace mhla::cuda::ptx {

// Lane l names row l % 8 of tile l / 8.
__device__ __forceinline__ void store_matrix(void* row, std::uint32_t r0, std::uint32_t r1,
                                             std::uint32_t r2, std::uint32_t r3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(shared_address(row)),
      "r"(r0), "r"(r1), "r"(r2), "r"(r3)
      : "memory");
}
__device__ __forceinline__ void store_matrix_2(void* row, std::uint32_t r0, std::uint32_t r1) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};\n" ::"r"(shared_address(row)),
      "r"(r0), "r"(r1)
      : "memory");
}

}  // namespace mhla::cuda::ptx
