// The local term of the forward by positions: a 3 x 3 depthwise convolution of v, which lies in
// shared memory.
//
// A tap is 16 tokens moved by one, times a diagonal matrix of weights: a product of 16 x 8 with
// 8 x 8 for every group of eight channels, two taps at a time. `ldmatrix` takes a row from
// anywhere, so a moved token costs nothing, and one outside of the grid is a row of zeros. Products
// are exact and sums f32.
//
// The four positions of a row tile are neighbours in a line, so their taps share rows: a warp takes
// 16 channels of all 64 tokens, and the sums go to the warps of the outputs through shared memory,
// rounded.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/dense_position_load.cuh"

namespace mhla::cuda::sm90 {

// Where a lane's rows of v lie for the positions around a row tile: of the line above, its own and
// the one below, the position left of the tile, the tile's first and the one right of it; the
// others follow the first, 16 rows each. Bytes from the head's first row of v, odd where the rows
// of this line, or of this position, are outside of the grid. Written once by the warps that
// compute, two entries a word: [row tile of a head][word][block].
inline constexpr int kTapEntries = 9;

template <int kWarpgroups>
__device__ __forceinline__ void write_tap_rows(const PositionArgs& args, std::uint32_t shared) {
  constexpr int kTiles = kPositions / 4, kEntries = kTapEntries + 1;
  for (int n = static_cast<int>(threadIdx.x); n < kTiles * kEntries * kPositionBlocks;
       n += 128 * kWarpgroups) {
    const int block = n % kPositionBlocks, i = n / kPositionBlocks % kEntries;
    const int tile = n / kPositionBlocks / kEntries;
    int down = block / args.across, across = block - down * args.across;
    int y = tile * 4 / args.block_width, x = tile * 4 - y * args.block_width;
    y += i / 3 - 1;
    x += i % 3 == 0 ? -1 : i % 3 == 1 ? 0 : 4;
    if (x < 0) x += args.block_width, --across;
    if (x >= args.block_width) x -= args.block_width, ++across;
    if (y < 0) y += args.block_height, --down;
    if (y >= args.block_height) y -= args.block_height, ++down;
    const bool inside = across >= 0 && across < args.across && down >= 0 && down < args.down;
    const int row = (y * args.block_width + x) * kPositionBlocks + down * args.across + across;
    const int entry = inside && i < kTapEntries ? row * 128 + row % 8 * 16 : 1;
    const int word = (tile * kEntries / 2 + i / 2) * kPositionBlocks + block;
    asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(shared + position_plan(kWarpgroups).rows +
                                                   4 * word + i % 2 * 2),
                 "h"(static_cast<short>(entry))
                 : "memory");
  }
}

// A lane's entries of that table for one row tile.
struct TapRows {
  std::uint32_t word[(kTapEntries + 1) / 2];

  // tile: of the head
  template <typename Shared>
  __device__ __forceinline__ void load(const Shared& shared, int tile) {
    constexpr int kWords = (kTapEntries + 1) / 2;
    const std::uint32_t from = shared.base + Shared::kPlan.rows +
                               4 * (tile * kWords * kPositionBlocks + threadIdx.x % 16);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      asm volatile("ld.shared.u32 %0, [%1];\n"
                   : "=r"(word[i])
                   : "r"(from + 4 * kPositionBlocks * i)
                   : "memory");
    }
  }
  // Address of the row at column -1 to 4 of line 0 to 2.
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
  // Rows around position x are columns x to x + 2; [line][rows of eight channels, of the next].
  std::uint32_t column[6][3][4];
  std::uint32_t weights[kTapPairs][2];  // of this lane's channel in both groups of eight
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
#pragma unroll
    for (int i = 0; i < 6; ++i) load_column(i, rows, v, zeros);
  }

  // zero: that number, unknown to the compiler. NOTE: ptxas would move products between the loads
  // and wait for some of them again and again.
  __device__ __forceinline__ void multiply(int zero) {
    std::uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < 18; ++i) loaded |= column[i / 3][i % 3][0];
#pragma unroll
    for (int i = 0; i < kTapPairs; ++i) loaded |= weights[i][1];
    loaded &= static_cast<std::uint32_t>(zero);
    // This lane has column `channel` and rows 2 quad, 2 quad + 1 of both diagonal matrices.
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
      for (int n = 0; n < kTapPairs * 4; ++n) {
        const int i = n / 4, to = n / 2 % 2, g = n % 2;
        const int a = 2 * i, b = 2 * i + 1;  // taps; the tenth is the bias, with ones
        const std::uint32_t (&one)[4] = column[x + to + a % 3][a / 3];
        const std::uint32_t (&two)[4] = column[x + to + b % 3][b / 3 % 3];
        const std::uint32_t pair[4] = {one[2 * g], one[2 * g + 1], b < kTaps ? two[2 * g] : kOnes,
                                       b < kTaps ? two[2 * g + 1] : kOnes};
        const std::uint32_t b0 = __byte_perm(weights[i][g], 0u, first);
        const std::uint32_t b1 = __byte_perm(weights[i][g], 0u, second);
        if constexpr (std::is_same_v<T, bf16>) {
          ptx::mma_bf16(c[to][g], pair, b0, b1);
        } else {
          ptx::mma_f16(c[to][g], pair, b0, b1);
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

  __device__ __forceinline__ void load_column(int i, const TapRows& rows, std::uint32_t v,
                                              std::uint32_t zeros) {
    // NOTE: a row of 128 bytes is swizzled by the exclusive or with its number, so chunk g of it is
    // that of chunk 0 and g.
    const std::uint32_t chunk = (2 * warp() + threadIdx.x % 32 / 16) * 16;
#pragma unroll
    for (int line = 0; line < 3; ++line) {
      std::uint32_t (&to)[4] = column[i][line];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(rows.at(v, zeros, line, i - 1) ^ chunk)
                   : "memory");
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
