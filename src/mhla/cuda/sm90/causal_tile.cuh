// What the causal kernels share: rings of buffers, tiles as operands, the feature map in place.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/bulk_copy.cuh"
#include "mhla/cuda/sm90/causal_args.h"
#include "mhla/cuda/sm90/feature_pair.cuh"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kCausalMapWarps = 3;
using Box = SwizzledTile<64>;

// A place in a ring of buffers; a buffer's barriers complete a phase each time round.
template <int kSize>
struct CausalRing {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kSize) stage = 0, parity ^= 1;
  }
};

// A thread block's share of the work of a step: `first` and every `step`-th after it.
struct CausalShare {
  int first, step;
};
// A warp has done with a buffer. NOTE: what it loaded to registers must have been used by then: an
// arrival overtakes loads that wait behind products.
__device__ __forceinline__ void release_buffer(std::uint32_t barrier) {
  __syncwarp();
  warp_arrive(barrier);
}

// Operand whose inner dimension is tokens 16 * step and on, and whose outer one is the columns of
// boxes one after another. NOTE: the first stride of the descriptor leads from box to box, the
// second over groups of 8 tokens.
__device__ __forceinline__ Operand tokens_of_boxes(std::uint32_t boxes, int step) {
  return {(boxes >> 4) + static_cast<std::uint32_t>(step * 16 * 128 >> 4) +
              (static_cast<std::uint32_t>(kBoxBytes >> 4) << 16),
          (1024u >> 4) | 1u << 30};
}

// 16 rows a warp of boxes of 64 tokens, 16 columns a step: first factors of products.
template <int kSteps>
__device__ __forceinline__ void load_factors(std::uint32_t (&a)[kSteps][4], std::uint32_t boxes) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const std::uint32_t at = boxes + s / 4 * kBoxBytes + Box::chunk(row, s % 4 * 2 + lane / 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(a[s][0]), "=r"(a[s][1]), "=r"(a[s][2]), "=r"(a[s][3])
                 : "r"(at)
                 : "memory");
  }
}

// Columns of a box as first factors: 16 columns a warp, 16 tokens a step.
__device__ __forceinline__ void load_columns(std::uint32_t (&a)[kTile / 16][4], std::uint32_t box) {
  const int lane = threadIdx.x % 32, chunk = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;
  const std::uint32_t at = box + Box::chunk(lane % 8 + lane / 16 * 8, chunk);
#pragma unroll
  for (int s = 0; s < kTile / 16; ++s) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(a[s][0]), "=r"(a[s][1]), "=r"(a[s][2]), "=r"(a[s][3])
                 : "r"(at + s * 16 * 128)
                 : "memory");
  }
}

// phi in place on rows as they landed, by the mapping warps; the order of the bytes does not
// matter. NOTE: tokens past the end become phi(0): they meet zeros of v and d_o.
template <int kChunks, int kThreads = 32 * kCausalMapWarps, int kBatch = 2, typename Map>
__device__ __forceinline__ void map_rows(std::uint32_t rows, int thread, const Map& map) {
  constexpr bool kWhole = kChunks % (kBatch * kThreads) == 0;  // no batch lacks chunks
#pragma unroll 1
  for (int first = thread; first < kChunks; first += kBatch * kThreads) {
    std::uint32_t w[kBatch][4];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!kWhole && first + i * kThreads >= kChunks) break;
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(w[i][0]), "=r"(w[i][1]), "=r"(w[i][2]), "=r"(w[i][3])
                   : "r"(rows + (first + i * kThreads) * 16)
                   : "memory");
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!kWhole && first + i * kThreads >= kChunks) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) w[i][j] = map(w[i][j]);
      asm volatile(
          "st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(rows + (first + i * kThreads) * 16),
          "r"(w[i][0]), "r"(w[i][1]), "r"(w[i][2]), "r"(w[i][3])
          : "memory");
    }
  }
  fence_async();
}

// Two groups of 8 columns of an accumulator, rounded: 16 rows of a warp. Lane l writes to `at`,
// its row l % 16 and chunk l / 16.
__device__ __forceinline__ void store_groups(std::uint32_t at, const float* d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
               "r"(ptx::pack_bf16(d[0], d[1])), "r"(ptx::pack_bf16(d[2], d[3])),
               "r"(ptx::pack_bf16(d[4], d[5])), "r"(ptx::pack_bf16(d[6], d[7]))
               : "memory");
}

}  // namespace mhla::cuda::sm90
