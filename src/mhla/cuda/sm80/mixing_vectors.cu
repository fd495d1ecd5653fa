// The gradient of the mixing weights through f32 vectors, and its last sum.
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm80/mixing_vectors.cuh"

namespace mhla::cuda {

__global__ void __launch_bounds__(256) vector_gradient(const WeightGradientArgs args) {
  ptx::begin_after_previous();
  __shared__ float left[kGradientTile][kGradientDepth + 1];
  __shared__ float right[kGradientTile][kGradientDepth + 1];
  const int row0 = static_cast<int>(blockIdx.x) / args.tiles_n * kGradientTile;
  const int col0 = static_cast<int>(blockIdx.x) % args.tiles_n * kGradientTile;
  const int matrix = blockIdx.z;
  if (args.lower_only && col0 >= row0 + kGradientTile) return;
  const int i = static_cast<int>(threadIdx.x) / kGradientTile;
  const int b = static_cast<int>(threadIdx.x) % kGradientTile;

  const int pairs = args.per_head ? args.pairs / args.heads : args.pairs;
  const std::int64_t total = static_cast<std::int64_t>(pairs) * args.sequence_count;
  const std::int64_t begin = total * blockIdx.y / gridDim.y;
  const std::int64_t end = total * (blockIdx.y + 1) / gridDim.y;
  float sum = 0.f;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const MixSequence sequence = args.sequences[unit % args.sequence_count];
    std::int64_t pair = unit / args.sequence_count;
    if (args.per_head) pair = pair * args.heads + matrix;
    const float* from_left = static_cast<const float*>(args.left) +
                             (pair * args.q_blocks + sequence.q_first) * args.entries;
    const float* from_right = static_cast<const float*>(args.right) +
                              (pair * args.k_blocks + sequence.k_first) * args.entries;
    for (int entry = 0; entry < args.entries; entry += kGradientDepth) {
      __syncthreads();
      for (int n = threadIdx.x; n < kGradientTile * kGradientDepth; n += 256) {
        const int r = n / kGradientDepth, c = n % kGradientDepth;
        const bool inside = entry + c < args.entries;
        left[r][c] = inside && row0 + r < sequence.q_rows
                         ? from_left[static_cast<std::int64_t>(row0 + r) * args.entries + entry + c]
                         : 0.f;
        right[r][c] =
            inside && col0 + r < sequence.k_rows
                ? from_right[static_cast<std::int64_t>(col0 + r) * args.entries + entry + c]
                : 0.f;
      }
      __syncthreads();
#pragma unroll 8
      for (int c = 0; c < kGradientDepth; ++c) sum += left[i][c] * right[b][c];
    }
  }
  args.partial[blockIdx.y * args.partial_stride +
               (static_cast<std::int64_t>(args.matrix_first + matrix) * args.rows_padded + row0 +
                i) *
                   args.cols_padded +
               col0 + b] = sum;
}

// 32 weights a thread block; args.shares warps take turns at the partial sums.
__global__ void __launch_bounds__(1024) reduce_gradient(const ReduceArgs args) {
  ptx::begin_after_previous();
  __shared__ float sums[32][33];
  const int column = threadIdx.x % 32,
            lane = threadIdx.x / 32;  // a weight, and a share of the work
  const std::int64_t n = blockIdx.x * 32LL + column;
  const bool exists = n < static_cast<std::int64_t>(args.matrices) * args.rows * args.cols;
  const int b = static_cast<int>(n % args.cols);
  const int i = static_cast<int>(n / args.cols % args.rows);
  const int matrix = static_cast<int>(n / args.cols / args.rows);

  float sum = 0.f;
  if (exists && i < args.used_rows && b < args.used_cols && weight_is_read(args.mask, i, b)) {
    const float* partial = args.partial +
                           (static_cast<std::int64_t>(matrix) * args.rows_padded + i) *
                               args.cols_padded +
                           b;
#pragma unroll 8
    for (int split = lane; split < args.splits; split += args.shares) {
      sum += partial[split * args.partial_stride];
    }
  }
  if (exists && args.diagonal_terms != nullptr && i == b && i < args.used_rows) {
    for (int block = 0; block < args.blocks; ++block) {
      if (args.block_index[block] != i) continue;
      const int pairs = args.per_head ? args.batch : args.batch * args.heads;
      for (int p = lane; p < pairs; p += args.shares) {
        const std::int64_t pair = args.per_head ? static_cast<std::int64_t>(p) * args.heads + matrix
                                                : p;
        sum += args.diagonal_terms[pair * args.blocks + block];
      }
    }
  }
  sums[lane][column] = sum;
  __syncthreads();
  if (lane > 0 || !exists) return;
  float total = 0.f;
  for (int share = 0; share < args.shares; ++share) total += sums[share][column];
  args.d_mixing[matrix * args.head_stride + i * args.row_stride + b * args.col_stride] = total;
}

Kernel<MixArgs> mix_vectors_kernel(bool transposed) {
  return transposed ? mix_vectors<true> : mix_vectors<false>;
}
Kernel<WeightGradientArgs> vector_gradient_kernel() { return vector_gradient; }
Kernel<ReduceArgs> reduce_gradient_kernel() { return reduce_gradient; }

}  // namespace mhla::cuda
