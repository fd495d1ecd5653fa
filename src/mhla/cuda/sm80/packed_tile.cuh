// bf16 tiles whose rows belong to a group of warps: 16 rows a group, loaded, mapped, multiplied
// and written by the same warps, so that most steps need no barrier of the whole thread block.
#pragma once

#include "mhla/cuda/device/tile.cuh"
#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/sm80/linear_args.h"

namespace mhla::cuda {

// Warps of a group: kRN side by side over 16 rows.
template <int kRN>
struct Group {
  static constexpr int kThreads = kRN * 32;
  // NOTE: unsigned, because signed division costs more instructions.
  static __device__ __forceinline__ int index() { return static_cast<int>(threadIdx.x / kThreads); }
  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x % kThreads);
  }
  static __device__ __forceinline__ int part() { return thread() / 32; }
  static __device__ __forceinline__ void sync() {
    if constexpr (kRN == 1) ptx::sync_warp();
    else ptx::sync_warps(1 + index(), kThreads);
  }
};

// Token numbers of a group's 16 rows, -1 past the end of the block: lane l of each warp holds that
// of row l % 16.
template <typename Warps>
__device__ __forceinline__ int group_tokens(const DeviceBlock& block, int first) {
  const int position = first + Warps::index() * 16 + static_cast<int>(threadIdx.x % 16);
  return position < block.count ? block.token(position) : -1;
}

// The group's 16 rows of a [rows][kCols] tile.
template <int kCols, int kRN>
struct GroupRows {
  using G = Group<kRN>;
  static constexpr int kLd = kCols + 8;
  static constexpr int kPerRow = kCols / 8;
  static constexpr int kOwned = 16 * kPerRow / G::kThreads;
  static_assert(16 * kPerRow % G::kThreads == 0, "all threads own equally many chunks");

  // Row and column of an owned chunk; the column is the same for all chunks of a thread when a
  // group covers whole rows.
  static __device__ __forceinline__ int row_in_group(int i) {
    const unsigned t = G::thread();
    if constexpr (G::kThreads % kPerRow == 0) {
      return static_cast<int>(t / kPerRow) + i * (G::kThreads / kPerRow);
    } else {
      return static_cast<int>((t + i * G::kThreads) / kPerRow);
    }
  }
  static __device__ __forceinline__ int row(int i) {  // inside the tile
    return G::index() * 16 + row_in_group(i);
  }
  static __device__ __forceinline__ int col(int i) {
    const unsigned t = G::thread();
    if constexpr (G::kThreads % kPerRow == 0) return static_cast<int>(t % kPerRow) * 8;
    else return static_cast<int>((t + i * G::kThreads) % kPerRow) * 8;
  }
  // Address of an owned chunk: one multiplication; not to be followed where there is no token.
  static __device__ __forceinline__ bf16* address(const bf16* head, const RowTensor& tensor,
                                                  int token, int i) {
    const auto stride = static_cast<std::uint32_t>(tensor.token_stride) * 2u;
    char* base = reinterpret_cast<char*>(const_cast<bf16*>(head + col(i)));
    return reinterpret_cast<bf16*>(
        base + static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) * stride);
  }

  // Starts loading; columns past `cols` and rows past the block become zeros.
  static __device__ __forceinline__ void load(bf16* tile, const bf16* head, const RowTensor& tensor,
                                              int tokens, int cols) {
    bf16* to = tile + row(0) * kLd + col(0);
    if (tensor.vectors) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int t = token_of(tokens, i);
        ptx::copy_async(to + (row(i) - row(0)) * kLd + col(i) - col(0), address(head, tensor, t, i),
                        t >= 0 && col(i) < cols);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kOwned; ++i) {
      const int c = col(i), t = token_of(tokens, i);
      const bf16* from = address(head, tensor, t, i);
#pragma unroll 1
      for (int e = 0; e < 8; ++e) {
        tile[row(i) * kLd + c + e] = t >= 0 && c + e < cols ? from[e] : bf16{0};
      }
    }
  }

  // phi in place; zero where there is no token or no column, because padding must not become eps.
  static __device__ __forceinline__ void map(bf16* tile, const Map& map, int rows, int cols) {
    if (map.identity) return;  // zeros stay zeros
    if (map.elu1 || cols % 8 != 0) {
#pragma unroll 1
      for (int i = 0; i < kOwned; ++i) {
#pragma unroll 1
        for (int e = col(i); e < col(i) + 8; ++e) {
          bf16* at = tile + row(i) * kLd + e;
          *at = row(i) < rows && e < cols ? from_float<bf16>(feature(map, to_float(*at))) : bf16{0};
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      Chunk* at = reinterpret_cast<Chunk*>(tile + row(i) * kLd + col(i));
      Chunk chunk = *at;
      relu_bf16(map, chunk);
      if (row(i) >= rows || col(i) >= cols) chunk = Chunk{};
      *at = chunk;
    }
  }

  static __device__ __forceinline__ void store(const bf16* tile, bf16* head,
                                               const RowTensor& tensor, int tokens, int cols) {
    if (tensor.vectors) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int t = token_of(tokens, i);
        if (t < 0 || col(i) >= cols) continue;
        *reinterpret_cast<Chunk*>(address(head, tensor, t, i)) = *reinterpret_cast<const Chunk*>(
            tile + row(i) * kLd + col(i));
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kOwned; ++i) {
      const int c = col(i), t = token_of(tokens, i);
      bf16* to = address(head, tensor, t, i);
#pragma unroll 1
      for (int e = 0; t >= 0 && e < min(8, cols - c); ++e) to[e] = tile[row(i) * kLd + c + e];
    }
  }

 private:
  static __device__ __forceinline__ int token_of(int tokens, int i) {
    return ptx::broadcast(tokens, row_in_group(i));
  }
};

// Row tiles in flight. Stages are counted up and wrapped, because a division by a number known at
// run time costs more than a small product.
struct Stages {
  int count;        // in shared memory
  int tiles;        // of the block
  int started = 0;  // tiles
  int next = 0;     // stage of the tile that is started next
  int now = 0;      // stage of the tile that is worked on

  // Starts the tiles that fit ahead of tile t, start(tile, stage), then waits for tile t.
  template <typename F>
  __device__ __forceinline__ void keep_ahead(int t, F&& start) {
    const int until = min(t + count, tiles);
#pragma unroll 1
    while (started < until) {
      start(started, next);
      ptx::copy_commit();
      ++started;
      next = next + 1 == count ? 0 : next + 1;
    }
    switch (started - t) {  // tile t and those after it are in flight
      case 4: return ptx::copy_wait<3>();
      case 3: return ptx::copy_wait<2>();
      case 2: return ptx::copy_wait<1>();
      default: return ptx::copy_wait<0>();
    }
  }
  __device__ __forceinline__ void advance() { now = now + 1 == count ? 0 : now + 1; }
};

// Shapes and warp positions of one pair of widths.
template <int DK_, int DV_, typename Shape_ = LinearShape<DK_, DV_>>
struct Packed {
  static constexpr int DK = DK_, DV = DV_;
  using Shape = Shape_;
  static constexpr int kThreads = Shape::kWarps * 32;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kRN = Shape::kWarps / (kRows / 16);
  using Warps = Group<kRN>;
  using KRows = GroupRows<DK, kRN>;
  using VRows = GroupRows<DV, kRN>;
  using STile = MatrixTile<bf16, DK, DV, kThreads>;
  static constexpr int kKElements = kRows * KRows::kLd, kVElements = kRows * VRows::kLd;

  static constexpr int kSumMI = DK / 16 / Shape::kSumM, kSumNI = DV / 8 / Shape::kSumN;
  static __device__ __forceinline__ unsigned warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int sum_row() {
    return static_cast<int>(warp() / Shape::kSumN) * kSumMI * 16;
  }
  static __device__ __forceinline__ int sum_col() {
    return static_cast<int>(warp() % Shape::kSumN) * kSumNI * 8;
  }
  static constexpr int kKI = DK / 8 / kRN, kVI = DV / 8 / kRN;
  // Thread blocks that share a multiprocessor: what the accumulators leave registers for.
  static constexpr bool kSmall = kThreads <= 128 && DK <= 64;
  static constexpr int kBlocks = DK <= 32 ? 7 : kSmall ? 5 : 2;
  static constexpr int kReadoutBlocks = DK <= 32 ? 7 : kSmall ? 5 : 2;
  static constexpr int kBackwardQBlocks = DK <= 32 ? 5 : kSmall ? 4 : kThreads < 256 ? 2 : 1;
  static constexpr int kBackwardKvBlocks = DK <= 32 ? 6 : kSmall ? 4 : 2;
  static constexpr int kSumEntries = DK % 32 == 0 ? DK : (DK / 32 + 1) * 32;  // of a key sum
};

// f(half, col, x, y): two neighbouring sums of row lane / 4 + 8 * half of the group.
template <int NI, typename F>
__device__ __forceinline__ void for_each_half(Accumulator<1, NI>& acc, F&& f) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < NI; ++j) {
    f(0, j * 8 + lane % 4 * 2, acc[0][j][0], acc[0][j][1]);
    f(1, j * 8 + lane % 4 * 2, acc[0][j][2], acc[0][j][3]);
  }
}

}  // namespace mhla::cuda
