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
  static __device__ __forceinline__ int index() { return static_cast<int>(threadIdx.x) / kThreads; }
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
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
  const int position = first + Warps::index() * 16 + static_cast<int>(threadIdx.x) % 16;
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

  static __device__ __forceinline__ int row(int i) {  // inside the tile
    return G::index() * 16 + (G::thread() + i * G::kThreads) / kPerRow;
  }
  static __device__ __forceinline__ int col(int i) {
    return (G::thread() + i * G::kThreads) % kPerRow * 8;
  }

  // Starts loading; columns past `cols` and rows past the block become zeros.
  static __device__ __forceinline__ void load(bf16* tile, const bf16* head, const RowTensor& tensor,
                                              int tokens, int cols) {
    const int stride = static_cast<int>(tensor.token_stride);
    if (tensor.vectors) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int c = col(i), t = token_of(tokens, i);
        const bool valid = t >= 0 && c < cols;
        const std::int64_t at = static_cast<std::int64_t>(valid ? t : 0) * stride;
        ptx::copy_async(tile + row(i) * kLd + c, head + at + (valid ? c : 0), valid);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kOwned; ++i) {
      const int c = col(i), t = token_of(tokens, i);
#pragma unroll 1
      for (int e = c; e < c + 8; ++e) {
        const std::int64_t at = static_cast<std::int64_t>(t) * stride + e;
        tile[row(i) * kLd + e] = t >= 0 && e < cols ? head[at] : bf16{0};
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
    const int stride = static_cast<int>(tensor.token_stride);
    if (tensor.vectors) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int c = col(i), t = token_of(tokens, i);
        if (t < 0 || c >= cols) continue;
        *reinterpret_cast<Chunk*>(head + static_cast<std::int64_t>(t) * stride + c) =
            *reinterpret_cast<const Chunk*>(tile + row(i) * kLd + c);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kOwned; ++i) {
      const int c = col(i), t = token_of(tokens, i);
#pragma unroll 1
      for (int e = c; t >= 0 && e < min(c + 8, cols); ++e) {
        head[static_cast<std::int64_t>(t) * stride + e] = tile[row(i) * kLd + e];
      }
    }
  }

 private:
  static __device__ __forceinline__ int token_of(int tokens, int i) {
    return ptx::broadcast(tokens, row(i) % 16);
  }
};

// Runs `start(t)` for the row tiles that fit ahead of tile t, then waits for tile t.
template <typename F>
__device__ __forceinline__ void keep_ahead(int t, int tiles, int stages, int& started, F&& start) {
  const int until = min(t + stages, tiles);
#pragma unroll 1
  while (started < until) {
    start(started++);
    ptx::copy_commit();
  }
  switch (started - t) {  // tile t and those after it are in flight
    case 4: return ptx::copy_wait<3>();
    case 3: return ptx::copy_wait<2>();
    case 2: return ptx::copy_wait<1>();
    default: return ptx::copy_wait<0>();
  }
}

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
  // o, and d_q on its way out: in the same rows when both are equally wide.
  static constexpr int kStagedAt = DK == DV ? 0 : kVElements;
  static constexpr int kOutElements = kStagedAt + kKElements;

  static constexpr int kSumMI = DK / 16 / Shape::kSumM, kSumNI = DV / 8 / Shape::kSumN;
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int sum_row() { return warp() / Shape::kSumN * kSumMI * 16; }
  static __device__ __forceinline__ int sum_col() { return warp() % Shape::kSumN * kSumNI * 8; }
  static constexpr int kKI = DK / 8 / kRN, kVI = DV / 8 / kRN;
  static constexpr int kSumEntries = DK % 32 == 0 ? DK : (DK / 32 + 1) * 32;  // of a key sum
};

// f(half, col, x, y): two neighbouring sums of row lane / 4 + 8 * half of the group.
template <int NI, typename F>
__device__ __forceinline__ void for_each_half(Accumulator<1, NI>& acc, F&& f) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < NI; ++j) {
    f(0, j * 8 + lane % 4 * 2, acc[0][j][0], acc[0][j][1]);
    f(1, j * 8 + lane % 4 * 2, acc[0][j][2], acc[0][j][3]);
  }
}

}  // namespace mhla::cuda
