// Mixing of numbers of rows over blocks, position by position (shared_position): denominators to
// row factors, and their gradients back. TF32 products with f32 sums.
#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kRows = kWarps * 16;  // blocks that a thread block writes, 16 a warp
constexpr int kColumns = 16;        // positions
constexpr int kDepth = 256;         // blocks in shared memory at a time
constexpr int kStride = 24;  // NOTE: of a row there: no two lanes of a fragment meet in a bank

// A thread block for each (pair, kColumns positions), (kRows blocks).
template <bool kTransposed>
__global__ void __launch_bounds__(kThreads) mix_rows(const __grid_constant__ RowMixArgs args) {
  __shared__ std::uint32_t tile[kDepth * kStride];
  ptx::begin_after_previous();
  const int blocks = args.layout.blocks, slots = args.slots;
  const int chunks = (slots + kColumns - 1) / kColumns;
  const int pair = static_cast<int>(blockIdx.x) / chunks;
  const int column = (static_cast<int>(blockIdx.x) - pair * chunks) * kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, quad = lane % 4;
  const int row = static_cast<int>(blockIdx.y) * kRows + warp * 16 + group;  // and row + 8
  const bool busy = row - group < blocks;
  const std::int64_t first = static_cast<std::int64_t>(pair) * blocks * slots;
  // NOTE: weights are padded with zeros to multiples of 128.
  const float* weights = args.weights + (args.head_first + pair % args.heads) * args.weights_stride;
  const auto weight = [&](int i, int b) {
    const std::int64_t at = kTransposed ? static_cast<std::int64_t>(b) * args.weights_ld + i
                                        : static_cast<std::int64_t>(i) * args.weights_ld + b;
    return ptx::round_tf32(weights[at]);
  };

  float sums[2][4] = {};
  for (int from = 0; from < blocks; from += kDepth) {
    const int depth = min(kDepth, (blocks - from + 7) / 8 * 8);
    __syncthreads();
#pragma unroll 8
    for (int n = static_cast<int>(threadIdx.x); n < depth * kColumns; n += kThreads) {
      const int b = n / kColumns, c = n % kColumns;
      const bool inside = from + b < blocks && column + c < slots;
      const float x =
          inside ? args.in[first + static_cast<std::int64_t>(from + b) * slots + column + c] : 0.f;
      tile[b * kStride + c] = ptx::round_tf32(x);
    }
    __syncthreads();
    if (!busy) continue;
#pragma unroll 4
    for (int b = 0; b < depth; b += 8) {
      const int left = from + b + quad;
      const std::uint32_t a[4] = {weight(row, left), weight(row + 8, left), weight(row, left + 4),
                                  weight(row + 8, left + 4)};
      const std::uint32_t* right = tile + (b + quad) * kStride + group;
      ptx::mma_tf32(sums[0], a, right[0], right[4 * kStride]);
      ptx::mma_tf32(sums[1], a, right[8], right[4 * kStride + 8]);
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int block = row + i % 4 / 2 * 8, slot = column + i / 4 * 8 + quad * 2 + i % 2;
    if (block >= blocks || slot >= slots) continue;
    const std::int64_t at = first + static_cast<std::int64_t>(block) * slots + slot;
    const float sum = sums[i / 4][i % 4];
    if constexpr (kTransposed) {
      const TilePlace place = block_at(args.layout, block);
      args.out[at] = is_token(args.layout, place, slot) ? sum : 0.f;
    } else {
      const float total = args.scale * sum + args.eps;
      const float exact = total == 0.f ? 0.f : args.scale / total;
      // The gradient of a mixing weight is a difference of terms that cancel only if both see the
      // same rounded factor, once. The other factor of the denominator's term is that of the
      // output, which is not rounded.
      const float factor = args.dots != nullptr ? to_float(from_float<bf16>(exact)) : exact;
      args.out[at] = factor;
      if (args.dots != nullptr) args.dden[at] = -args.dots[at] * exact * factor;
    }
  }
}

constexpr int kGradient = 32;  // weights both ways of a thread block

// <left_i, right_b> over pairs and positions: kGradient x kGradient weights a thread block, whose
// warps take turns at the positions. The launch is (split of the pairs, tile, matrix).
__global__ void __launch_bounds__(kThreads) row_gradient(const WeightGradientArgs args) {
  __shared__ float parts[kWarps][kGradient * kGradient];
  ptx::begin_after_previous();
  const int row0 = static_cast<int>(blockIdx.y) / args.tiles_n * kGradient;
  const int col0 = static_cast<int>(blockIdx.y) % args.tiles_n * kGradient;
  if (args.lower_only && col0 >= row0 + kGradient) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, quad = lane % 4, slots = args.entries;
  const int pairs = args.per_head ? args.pairs / args.heads : args.pairs;
  const int begin = static_cast<int>(static_cast<std::int64_t>(pairs) * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(static_cast<std::int64_t>(pairs) * (blockIdx.x + 1) / gridDim.x);
  // The numbers of positions `at` and at + 1; the sum does not care which column of a fragment
  // holds which position.
  const auto load = [&](const void* from, std::int64_t pair, int blocks, int block, int at) {
    if (block >= blocks) return make_uint2(0u, 0u);
    const float* row = static_cast<const float*>(from) + (pair * blocks + block) * slots;
    return make_uint2(at < slots ? ptx::round_tf32(row[at]) : 0u,
                      at + 1 < slots ? ptx::round_tf32(row[at + 1]) : 0u);
  };

  float sums[2][4][4] = {};
  const int steps = (slots + 7) / 8;
#pragma unroll 2
  for (int n = begin * steps + warp; n < end * steps; n += kWarps) {
    const int unit = n / steps, at = (n - unit * steps) * 8 + quad * 2;
    const std::int64_t pair = args.per_head
                                  ? static_cast<std::int64_t>(unit) * args.heads + blockIdx.z
                                  : unit;
    std::uint32_t a[2][4];
    uint2 b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 x = load(args.left, pair, args.q_blocks, row0 + i * 8 + group, at);
      a[i / 2][i % 2] = x.x;
      a[i / 2][i % 2 + 2] = x.y;
      b[i] = load(args.right, pair, args.k_blocks, col0 + i * 8 + group, at);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::mma_tf32(sums[i / 4][i % 4], a[i / 4], b[i % 4].x, b[i % 4].y);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = i / 16 * 16 + i % 4 / 2 * 8 + group, col = i / 4 % 4 * 8 + quad * 2 + i % 2;
    parts[warp][row * kGradient + col] = sums[i / 16][i / 4 % 4][i % 4];
  }
  __syncthreads();
  const std::int64_t matrix = args.matrix_first + blockIdx.z;
  float* to = args.partial + blockIdx.x * args.partial_stride +
              matrix * args.rows_padded * args.cols_padded;
  for (int n = static_cast<int>(threadIdx.x); n < kGradient * kGradient; n += kThreads) {
    const int row = row0 + n / kGradient, col = col0 + n % kGradient;
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w][n];
    if (row < args.rows_padded && col < args.cols_padded) {
      to[static_cast<std::int64_t>(row) * args.cols_padded + col] = sum;
    }
  }
}

}  // namespace

const RowMixKernels& row_mix_kernels() {
  static const RowMixKernels kernels{.threads = kThreads,
                                     .rows = kRows,
                                     .columns = kColumns,
                                     .factors = mix_rows<false>,
                                     .transposed = mix_rows<true>,
                                     .gradient = row_gradient,
                                     .gradient_tile = kGradient};
  return kernels;
}

}  // namespace mhla::cuda::sm90
