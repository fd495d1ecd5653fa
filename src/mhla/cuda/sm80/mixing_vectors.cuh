// Mixing of f32 vectors (key sums, denominators), preparation of the weights, and the last sums of
// their gradient. All of it is small beside the summaries.
#pragma once

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

// Is the mixing weight of (query block i, key block b) read at all? Order of mhla::Mask.
__device__ __forceinline__ bool weight_is_read(int mask, int i, int b) {
  return mask == 0 || (mask == 1 ? b < i : b <= i);
}

// Weights rounded to the summary type and in f32, zero where masked or past the edge; the diagonal
// apart, because the causal mask treats the own block on its own.
template <typename G>
__global__ void __launch_bounds__(256) prepare_weights(const PrepareArgs args) {
  ptx::begin_after_previous();
  const std::int64_t size = static_cast<std::int64_t>(args.matrices) * args.rows_padded *
                            args.cols_padded;
  for (std::int64_t n = blockIdx.x * 256LL + threadIdx.x; n < size; n += gridDim.x * 256LL) {
    const int col = static_cast<int>(n % args.cols_padded);
    const std::int64_t rest = n / args.cols_padded;
    const int row = static_cast<int>(rest % args.rows_padded);
    const int matrix = static_cast<int>(rest / args.rows_padded);
    float value = 0.f;
    if (row < args.rows && col < args.cols) {
      value =
          args.mixing[matrix * args.head_stride + row * args.row_stride + col * args.col_stride];
    }
    if (row == col) args.diagonal[matrix * args.rows_padded + row] = value;
    if (!weight_is_read(args.mask, row, col)) value = 0.f;
    static_cast<G*>(args.weights)[n] = from_float<G>(value);
    args.weights_f32[n] = value;
  }
}

inline constexpr int kVectorRows = 8;  // of the output per thread block
inline constexpr int kVectorThreads = 128;

// out[pair][row][entry] = sum of weight(row, col) in[pair][col][entry]; weights transposed on
// demand. One thread block per (pair, 128 entries), (task, kVectorRows of its rows).
template <bool kTransposed>
__global__ void __launch_bounds__(kVectorThreads) mix_vectors(const MixArgs args) {
  ptx::begin_after_previous();
  const MixTask task = args.tasks[blockIdx.y];
  const int slices = (args.entries + kVectorThreads - 1) / kVectorThreads;
  const int pair = blockIdx.x / slices;
  const int entry = blockIdx.x % slices * kVectorThreads + static_cast<int>(threadIdx.x);
  const int row = task.row + static_cast<int>(blockIdx.z) * kVectorRows;
  if (entry >= args.entries || row >= task.out_rows) return;
  const float* weights = static_cast<const float*>(args.weights) +
                         (args.head_first + pair % args.heads) * args.weights_stride;
  const float* in = static_cast<const float*>(args.in) +
                    (static_cast<std::int64_t>(pair) * args.in_blocks + task.in_first) *
                        args.entries +
                    entry;
  float sums[kVectorRows] = {};
  const int end = min(task.col_end, task.in_rows);
  for (int col = task.col_begin; col < end; ++col) {
    const float x = in[static_cast<std::int64_t>(col) * args.entries];
#pragma unroll
    for (int r = 0; r < kVectorRows; ++r) {
      const std::int64_t at = kTransposed
                                  ? static_cast<std::int64_t>(col) * args.weights_ld + row + r
                                  : static_cast<std::int64_t>(row + r) * args.weights_ld + col;
      sums[r] += weights[at] * x;
    }
  }
  float* out = static_cast<float*>(args.out) +
               (static_cast<std::int64_t>(pair) * args.out_blocks + task.out_first) * args.entries +
               entry;
#pragma unroll
  for (int r = 0; r < kVectorRows; ++r) {
    if (row + r < task.out_rows) out[static_cast<std::int64_t>(row + r) * args.entries] = sums[r];
  }
}

inline constexpr int kGradientTile = 16;
inline constexpr int kGradientDepth = 32;

// <left_i, right_b> of f32 vectors: 16 x 16 weights per thread block, one per thread.
// The launch is (tile, split of the pairs, matrix).
__global__ void __launch_bounds__(256) vector_gradient(const WeightGradientArgs args);

// Sums the partial gradients in a fixed order: 32 weights a thread block, 32 shares of the splits.
__global__ void __launch_bounds__(1024) reduce_gradient(const ReduceArgs args);

}  // namespace mhla::cuda
