// Types, tiles and warp positions that every kernel of the linear form uses.
#pragma once

#include "mhla/cuda/device/tile.cuh"
#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/sm80/linear_args.h"

namespace mhla::cuda {

template <typename In_, int DK_, int DV_, typename Shape_ = LinearShape<DK_, DV_>>
struct Linear {
  using In = In_;        // of the tensors
  using T = TileOf<In>;  // of their rows in shared memory
  using G = typename SummaryOf<In>::type;
  static constexpr int DK = DK_, DV = DV_;
  using Shape = Shape_;
  static constexpr int kThreads = Shape::kWarps * 32;
  static constexpr int kRows = Shape::kRows;  // tokens of a tile
  static constexpr bool kSameType = std::is_same_v<T, G>;

  using KTile = RowTile<T, kRows, DK, kThreads>;  // q and k
  using VTile = RowTile<T, kRows, DV, kThreads>;  // v, o, d_o
  using GTile = RowTile<G, kRows, DV, kThreads>;  // d_o scaled by its row's factor
  using STile = MatrixTile<G, DK, DV, kThreads>;
  using PTile = MatrixTile<G, kRows, kRows, kThreads>;  // scores inside a block
  // NOTE: the scaled gradient replaces d_o in place when both have the same type.
  static constexpr int kGBytes = kSameType ? 0 : GTile::kBytes;
  static constexpr int kDotBytes = kRows * (KTile::kPerRow + VTile::kPerRow) *
                                   static_cast<int>(sizeof(float));
  static constexpr int kVectorBytes = DK * static_cast<int>(sizeof(float));
  static constexpr int kRowBytes = 3 * kRows * static_cast<int>(sizeof(float));

  // Warps over a [DK x DV] product.
  static constexpr int kSumMI = DK / 16 / Shape::kSumM, kSumNI = DV / 8 / Shape::kSumN;
  static __device__ __forceinline__ int sum_row() { return warp() / Shape::kSumN * kSumMI * 16; }
  static __device__ __forceinline__ int sum_col() { return warp() % Shape::kSumN * kSumNI * 8; }

  // Warps over a [kRows x anything] product.
  static constexpr int kRowM = kRows / 16, kRowN = Shape::kWarps / kRowM;
  static_assert(kRowM * kRowN == Shape::kWarps && Shape::kSumM * Shape::kSumN == Shape::kWarps);
  static constexpr int kRowKI = DK / 8 / kRowN, kRowVI = DV / 8 / kRowN;
  static constexpr int kRowPI = kRows / 8 / kRowN;
  static __device__ __forceinline__ int row_row() { return warp() / kRowN * 16; }
  static __device__ __forceinline__ int row_part() { return warp() % kRowN; }

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
};

// phi of a tile of q or k, zero where there is no token or no column: padding must not become eps.
template <typename Tile, typename T, typename F>
__device__ __forceinline__ void map_tile(T* tile, const Map& map, int rows, int cols, F&& seen) {
  Tile::transform(tile, [&](int row, int col, float (&x)[kChunk<T>]) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      const float phi = row < rows && col + i < cols ? feature(map, x[i]) : 0.f;
      x[i] = to_float(from_float<T>(phi));
    }
    seen(row, col, x);
    return true;
  });
}
template <typename Tile, typename T>
__device__ __forceinline__ void map_tile(T* tile, const Map& map, int rows, int cols) {
  map_tile<Tile>(tile, map, rows, cols, [](int, int, const float (&)[kChunk<T>]) {});
}

// Adds up per-thread sums of chunks that share a column, in a fixed order: out[DK].
template <typename Tile, int kCols, int kThreads, int N>
__device__ __forceinline__ void reduce_columns(float* scratch, const float (&sums)[N], float* out) {
  const int lane_row = static_cast<int>(threadIdx.x) / Tile::kPerRow;
#pragma unroll
  for (int i = 0; i < N; ++i) scratch[lane_row * kCols + Tile::own_column() + i] = sums[i];
  __syncthreads();
  for (int c = threadIdx.x; c < kCols; c += kThreads) {
    float total = 0.f;
    for (int r = 0; r < Tile::kRowStep; ++r) total += scratch[r * kCols + c];
    out[c] = total;
  }
}

// Per-row sums of what each chunk contributed: dots[row * parts + part].
__device__ __forceinline__ float sum_parts(const float* dots, int row, int parts) {
  float total = 0.f;
  for (int part = 0; part < parts; ++part) total += dots[row * parts + part];
  return total;
}

// The factor of an output row. A row whose denominator is zero is zero and passes no gradient.
__device__ __forceinline__ float row_factor(float scale, float eps, float den) {
  const float total = scale * den + eps;
  return total == 0.f ? 0.f : scale / total;
}

}  // namespace mhla::cuda
