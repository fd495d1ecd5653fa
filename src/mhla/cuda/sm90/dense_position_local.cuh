// The local term of the forward by positions: a 3 x 3 depthwise convolution of v, which lies in
// shared memory, added to the outputs in the registers of their products.
//
// Outputs of a warp are 16 tokens by 64 channels. A tap is these tokens moved by one, times a
// diagonal matrix of weights: a product of 16 x 8 with 8 x 8 for every group of eight channels, two
// taps at a time. `ldmatrix` takes a row from anywhere, so a moved token costs nothing, and one
// outside of the grid is a row of zeros. Products are exact and sums f32.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/dense_position_load.cuh"

namespace mhla::cuda::sm90 {

// Where a lane's rows of v lie for the five pairs of taps: lanes 0 to 15 name the 16 rows of the
// first tap of a pair, the others those of the second. Bytes from the head's first row of v, or,
// with the lowest bit set, from the rows of ones. Written once, [position][pair][lane].
// By the warps that compute.
template <PositionTeam kTeam>
__device__ __forceinline__ void write_tap_rows(const PositionArgs& args, std::uint32_t shared) {
  constexpr PositionPlan kPlan = position_plan(kTeam);
  constexpr int kThreads = 128 * kTeam.computing;
  for (int n = static_cast<int>(threadIdx.x); n < kPositions * kTapPairs * 32; n += kThreads) {
    const int lane = n % 32, pair = n / 32 % kTapPairs, position = n / 32 / kTapPairs;
    const int tap = 2 * pair + lane / 16, block = lane % 16;
    int down = block / args.across, across = block - down * args.across;
    int y = position / args.block_width, x = position - y * args.block_width;
    x += tap % 3 - 1;
    y += tap / 3 - 1;
    if (x < 0) x += args.block_width, --across;
    if (x >= args.block_width) x -= args.block_width, ++across;
    if (y < 0) y += args.block_height, --down;
    if (y >= args.block_height) y -= args.block_height, ++down;
    const bool inside = across >= 0 && across < args.across && down >= 0 && down < args.down;
    const int row = (y * args.block_width + x) * kPositionBlocks + down * args.across + across;
    const int entry = tap == kTaps ? 1
                      : !inside    ? (kPlan.zeros - kPlan.ones) | 1
                                   : row * 128 + row % 8 * 16;
    asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(shared + kPlan.rows + 2 * n),
                 "h"(static_cast<short>(entry))
                 : "memory");
  }
}

struct TapRows {
  std::uint32_t at[kTapPairs];

  TapRows() = default;
  // v: both halves, one behind the other; position: of the warp's tokens.
  template <typename Shared>
  __device__ __forceinline__ TapRows(const Shared& shared, std::uint32_t v, int position) {
    constexpr PositionPlan kPlan = Shared::kPlan;
    const std::uint32_t from = shared.base + kPlan.rows +
                               2 * (position * kTapPairs * 32 + threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kTapPairs; ++i) {
      std::uint16_t entry;
      asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(entry) : "r"(from + 64 * i) : "memory");
      at[i] = entry % 2 == 0 ? v + entry : shared.base + kPlan.ones - 1 + entry;
    }
  }
};

// Rows and weights of one pair of taps on their way.
template <typename T>
struct TapPair {
  std::uint32_t rows[8][4];  // of a group of eight channels: [tap][upper, lower eight rows]
  std::uint32_t weights[8];  // of this lane's channel in every group

  // row: an address of TapRows; taps: of the head.
  __device__ __forceinline__ void load(std::uint32_t row, std::uint32_t taps, int pair) {
    const std::uint32_t from = taps + threadIdx.x % 32 / 4 * kTapStride + pair * 32;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(weights[i]), "=r"(weights[i + 1]), "=r"(weights[i + 2]),
                     "=r"(weights[i + 3])
                   : "r"(from + 4 * i)
                   : "memory");
    }
    // NOTE: a row of 128 bytes is swizzled by the exclusive or with its number, so chunk g of it is
    // that of chunk 0 and g.
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(rows[g][0]), "=r"(rows[g][1]), "=r"(rows[g][2]), "=r"(rows[g][3])
                   : "r"(row ^ (g * 16))
                   : "memory");
    }
  }

  // sums: accumulators of 64 columns or more.
  template <int kSize>
  __device__ __forceinline__ void add(float (&sums)[kSize]) const {
    // This lane has column `channel` and rows 2 quad, 2 quad + 1 of both diagonal matrices.
    const int channel = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    const bool low = channel == 2 * quad, high = channel == 2 * quad + 1;
    const std::uint32_t first = low ? 0x4410u : high ? 0x1044u : 0x4444u;
    const std::uint32_t second = low ? 0x4432u : high ? 0x3244u : 0x4444u;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      float c[4] = {sums[4 * g], sums[4 * g + 1], sums[4 * g + 2], sums[4 * g + 3]};
      const std::uint32_t b0 = __byte_perm(weights[g], 0u, first);
      const std::uint32_t b1 = __byte_perm(weights[g], 0u, second);
      if constexpr (std::is_same_v<T, bf16>) {
        ptx::mma_bf16(c, rows[g], b0, b1);
      } else {
        ptx::mma_f16(c, rows[g], b0, b1);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[4 * g + i] = c[i];
    }
  }
};

// sums += the convolution, its first pair of taps loaded before.
template <typename T, int kSize>
__device__ __forceinline__ void add_local(float (&sums)[kSize], TapPair<T>& first,
                                          const TapRows& rows, std::uint32_t taps) {
  TapPair<T> second;
#pragma unroll
  for (int i = 0; i < kTapPairs; ++i) {
    TapPair<T>& now = i % 2 == 0 ? first : second;
    TapPair<T>& next = i % 2 == 0 ? second : first;
    if (i + 1 < kTapPairs) next.load(rows.at[i + 1], taps, i + 1);
    now.add(sums);
  }
}

}  // namespace mhla::cuda::sm90
