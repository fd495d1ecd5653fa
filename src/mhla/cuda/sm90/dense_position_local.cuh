// The local term of the forward by positions: a 3 x 3 depthwise convolution of v, which lies in
// shared memory.
//
// A tap is 16 tokens moved by one, times a diagonal matrix of weights: a product of 16 x 8 with
// 8 x 8 for every group of eight channels, two of them at a time where lines meet. `ldmatrix` takes
// a row from anywhere, so a moved token costs nothing, and one outside of the grid is a row of
// zeros. Products are exact and sums f32.
//
// The four positions of a row tile are neighbours in a line, so their taps share rows: a warp takes
// 16 channels of all 64 tokens, and the sums go to the warps of the outputs through shared memory,
// rounded.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/dense_position_load.cuh"

namespace mhla::cuda::sm90 {

// Where a lane's rows of v lie for the positions around a row tile, three in each of two lines: the
// position left of the tile, the tile's first and the one right of it; the others follow the first,
// 16 rows each. The lines are the one above, for lanes 0 to 15, or the tile's own, and the one
// below. Bytes from the head's first row of v, odd where the rows of this line, or of this
// position, are outside of the grid. Written once by the warps that compute, two entries a word:
// [row tile of a head][word][lane].
template <int kWarpgroups>
__device__ __forceinline__ void write_tap_rows(const PositionArgs& args, std::uint32_t shared) {
  constexpr int kTiles = kPositions / 4;
  for (int n = static_cast<int>(threadIdx.x); n < kTiles * 6 * 32; n += 128 * kWarpgroups) {
    const int lane = n % 32, i = n / 32 % 6, tile = n / 32 / 6, block = lane % 16;
    int down = block / args.across, across = block - down * args.across;
    int y = tile * 4 / args.block_width, x = tile * 4 - y * args.block_width;
    y += i < 3 ? lane / 16 - 1 : 1;
    x += i % 3 == 0 ? -1 : i % 3 == 1 ? 0 : 4;
    if (x < 0) x += args.block_width, --across;
    if (x >= args.block_width) x -= args.block_width, ++across;
    if (y < 0) y += args.block_height, --down;
    if (y >= args.block_height) y -= args.block_height, ++down;
    const bool inside = across >= 0 && across < args.across && down >= 0 && down < args.down;
    const int row = (y * args.block_width + x) * kPositionBlocks + down * args.across + across;
    const int entry = inside ? row * 128 + row % 8 * 16 : 1;
    asm volatile(
        "st.shared.u16 [%0], %1;\n" ::"r"(shared + position_plan(kWarpgroups).rows +
                                          4 * ((tile * 3 + i / 2) * 32 + lane) + i % 2 * 2),
        "h"(static_cast<short>(entry))
        : "memory");
  }
}

// A lane's entries of that table for one row tile.
struct TapRows {
  std::uint32_t word[3];

  // tile: of the head
  template <typename Shared>
  __device__ __forceinline__ void load(const Shared& shared, int tile) {
    const std::uint32_t from = shared.base + Shared::kPlan.rows +
                               4 * (tile * 3 * 32 + threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word[i]) : "r"(from + 128 * i) : "memory");
    }
  }
  // Address of the row at column -1 to 4 of the first or the second line.
  __device__ __forceinline__ std::uint32_t at(std::uint32_t v, std::uint32_t zeros, int line,
                                              int column) const {
    const int i = 3 * line + (column < 0 ? 0 : column < 4 ? 1 : 2);
    const std::uint32_t entry = i % 2 == 0 ? word[i / 2] & 0xffffu : word[i / 2] >> 16;
    const int step = column < 0 || column == 4 ? 0 : column * kPositionBlocks * 128;
    return entry % 2 == 0 ? v + entry + step : zeros;
  }
};

// The local term of a row tile, 16 channels a warp.
template <typename T>
struct LocalTile {
  // Rows around position x are columns x to x + 2. NOTE: these are operands of products as they
  // lie; others would be put together by copies, one a register.
  std::uint32_t above[6][2][4];         // [group of eight channels][line above, own line]
  std::uint32_t below[6][4];            // [group of eight channels]
  std::uint32_t weights[kTapPairs][2];  // of this lane's channel in both groups
  std::uint32_t sums[4][4];             // of a position, rounded

  // v: both halves, one behind the other; taps: of the head.
  __device__ __forceinline__ void load(const TapRows& rows, std::uint32_t v, std::uint32_t zeros,
                                       std::uint32_t taps) {
    const std::uint32_t from = taps + warp() * 8 * kTapStride + threadIdx.x % 32 / 4 * kTapStride;
#pragma unroll
    for (int i = 0; i + 1 < kTapPairs; i += 2) {
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(weights[i][0]), "=r"(weights[i][1]), "=r"(weights[i + 1][0]),
                     "=r"(weights[i + 1][1])
                   : "r"(from + 8 * i)
                   : "memory");
    }
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n"
                 : "=r"(weights[kTapPairs - 1][0]), "=r"(weights[kTapPairs - 1][1])
                 : "r"(from + 8 * (kTapPairs - 1))
                 : "memory");
    // NOTE: a row of 128 bytes is swizzled by the exclusive or with its number, so chunk g of it is
    // that of chunk 0 and g.
    const std::uint32_t chunk = 2 * warp() * 16;
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      const std::uint32_t row = rows.at(v, zeros, 0, i - 1) ^ chunk;
      load_matrices(above[i][0], row);
      load_matrices(above[i][1], row ^ 16);
      load_matrices(below[i], rows.at(v, zeros, 1, i - 1) ^ (chunk + threadIdx.x % 32 / 16 * 16));
    }
  }

  // zero: that number, unknown to the compiler. NOTE: ptxas would move products between the loads
  // and wait for some of them again and again.
  __device__ __forceinline__ void multiply(int zero) {
    std::uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < 6; ++i) loaded |= above[i][0][0] | above[i][1][0] | below[i][0];
#pragma unroll
    for (int i = 0; i < kTapPairs; ++i) loaded |= weights[i][1];
    loaded &= static_cast<std::uint32_t>(zero);
    // This lane has column `channel` and rows 2 quad, 2 quad + 1 of the diagonal matrices.
    const int channel = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    const bool low = channel == 2 * quad, high = channel == 2 * quad + 1;
    const std::uint32_t first = (low ? 0x4410u : high ? 0x1044u : 0x4444u) | loaded;
    const std::uint32_t second = (low ? 0x4432u : high ? 0x3244u : 0x4444u) | loaded;
    constexpr std::uint32_t kOnes = std::is_same_v<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
    // Two positions at a time: four sums that do not wait for each other.
#pragma unroll
    for (int x = 0; x < 4; x += 2) {
      float c[2][2][4] = {};
#pragma unroll
      for (int n = 0; n < 7 * 4; ++n) {
        const int i = n / 4, to = n / 2 % 2, g = n % 2;
        if (i < 3) {
          const std::uint32_t b0 = __byte_perm(weights[i][g], 0u, first);
          const std::uint32_t b1 = __byte_perm(weights[i][g], 0u, second);
          if constexpr (std::is_same_v<T, bf16>) {
            ptx::mma_bf16(c[to][g], above[x + to + i][g], b0, b1);
          } else {
            ptx::mma_f16(c[to][g], above[x + to + i][g], b0, b1);
          }
        } else {  // the line below, and the bias with ones
          const std::uint32_t b = __byte_perm(weights[(i + 3) / 2][g], 0u,
                                              i % 2 == 1 ? first : second);
          const std::uint32_t (&row)[4] = below[x + to + i % 3];
          multiply_half(c[to][g], i < 6 ? row[2 * g] : kOnes, i < 6 ? row[2 * g + 1] : kOnes, b);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float (&four)[4] = c[i / 4][i / 2 % 2];
        sums[x + i / 4][i % 4] = pack_pair<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
    }
  }

  // To the tile of the outputs once the outputs before have left it. By a warpgroup, whose barrier
  // it is.
  __device__ __forceinline__ void hand_over(std::uint32_t tile, int barrier) const {
    const int lane = threadIdx.x % 32;
    if (lane == 0) store_wait_read();
    __syncwarp();
    ptx::sync_warps(barrier, 128);
    const std::uint32_t to = tile + SwizzledTile<64>::chunk(lane % 16, 2 * warp() + lane / 16);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(
                       to + x * kPositionBlocks * 128),
                   "r"(sums[x][0]), "r"(sums[x][1]), "r"(sums[x][2]), "r"(sums[x][3])
                   : "memory");
    }
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x / 32 % 4); }

  static __device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  }
  // 16 x 8 times 8 x 8
  static __device__ __forceinline__ void multiply_half(float (&c)[4], std::uint32_t a0,
                                                       std::uint32_t a1, std::uint32_t b) {
    if constexpr (std::is_same_v<T, bf16>) {
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
          "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a0), "r"(a1), "r"(b));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a0), "r"(a1), "r"(b));
    }
  }
};

// What the other warps handed over of this warp's 16 tokens.
struct LocalRows {
  std::uint32_t word[8][2];  // [group of 8 columns][row of the two]

  __device__ __forceinline__ void load(std::uint32_t tile, int barrier) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t own = tile + threadIdx.x / 32 % 4 * kPositionBlocks * 128;
    ptx::sync_warps(barrier, 128);
#pragma unroll
    for (int g = 0; g < 8; g += 2) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(word[g][0]), "=r"(word[g][1]), "=r"(word[g + 1][0]), "=r"(word[g + 1][1])
                   : "r"(own + SwizzledTile<64>::chunk(lane % 16, g + lane / 16))
                   : "memory");
    }
  }
};

}  // namespace mhla::cuda::sm90
