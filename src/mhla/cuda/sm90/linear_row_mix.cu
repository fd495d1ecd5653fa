// Mixing of numbers of rows over blocks, position by position (shared_position): denominators to
// row factors, and their gradients back. TF32 products with f32 sums.
#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kRows = 64, kColumns = 32;  // blocks and positions of a thread block, 16 x 16 a warp
constexpr int kDepth = 256;               // blocks in shared memory at a time
constexpr int kStride = 34;  // NOTE: of a row there: no two lanes of a fragment meet in a bank

// Two steps of eight columns of a warp's 16 weights a column. A sum does not care which column of a
// fragment holds which block, nor the result which row holds which: lanes take neighbours in
// memory. Lane 4 g + t has rows g and g + 8 and columns 4 t to 4 t + 3, transposed rows 2 g and 2 g
// + 1.
template <bool kTransposed>
__device__ __forceinline__ void load_weights(std::uint32_t (&a)[2][4], const RowMixArgs& args,
                                             const float* weights, int row, int column) {
  if constexpr (kTransposed) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(
          weights + static_cast<std::int64_t>(column + i) * args.weights_ld + row);
      a[i / 2][i % 2 * 2] = ptx::round_tf32(x.x);
      a[i / 2][i % 2 * 2 + 1] = ptx::round_tf32(x.y);
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 x = *reinterpret_cast<const float4*>(
          weights + static_cast<std::int64_t>(row + 8 * half) * args.weights_ld + column);
      a[0][half] = ptx::round_tf32(x.x);
      a[0][half + 2] = ptx::round_tf32(x.y);
      a[1][half] = ptx::round_tf32(x.z);
      a[1][half + 2] = ptx::round_tf32(x.w);
    }
  }
}

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
  const int first_row = static_cast<int>(blockIdx.y) * kRows + warp % 4 * 16;
  const int own = warp / 4 * 16;  // columns of this warp
  const int row = first_row + (kTransposed ? 2 * group : group);
  constexpr int kNextRow = kTransposed ? 1 : 8;
  const std::int64_t first = static_cast<std::int64_t>(pair) * blocks * slots;
  // NOTE: weights are padded with zeros to multiples of 128, and so are blocks here.
  const float* weights = args.weights + (args.head_first + pair % args.heads) * args.weights_stride;

  float sums[2][4] = {};
  for (int from = 0; from < blocks; from += kDepth) {
    const int depth = min(kDepth, (blocks - from + 15) / 16 * 16);
    if (from > 0) __syncthreads();
#pragma unroll 4
    for (int n = static_cast<int>(threadIdx.x); n < depth * (kColumns / 4); n += kThreads) {
      const int b = n / (kColumns / 4), c = n % (kColumns / 4) * 4;
      float4 x = {};
      if (from + b < blocks && column + c < slots) {
        x = __ldcg(reinterpret_cast<const float4*>(
            args.in + first + static_cast<std::int64_t>(from + b) * slots + column + c));
      }
      auto* to = reinterpret_cast<uint2*>(tile + b * kStride + c);
      to[0] = make_uint2(ptx::round_tf32(x.x), ptx::round_tf32(x.y));
      to[1] = make_uint2(ptx::round_tf32(x.z), ptx::round_tf32(x.w));
    }
    __syncthreads();
    if (first_row >= blocks) continue;
#pragma unroll 4
    for (int b = 0; b < depth; b += 16) {
      std::uint32_t a[2][4];
      load_weights<kTransposed>(a, args, weights, row, from + b + 4 * quad);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t* right = tile + (b + 4 * quad + 2 * half) * kStride + own + group;
        ptx::mma_tf32(sums[0], a[half], right[0], right[kStride]);
        ptx::mma_tf32(sums[1], a[half], right[8], right[kStride + 8]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int block = row + i % 4 / 2 * kNextRow,
              slot = column + own + i / 4 * 8 + quad * 2 + i % 2;
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
      if (args.dots != nullptr) args.dden[at] = -__ldcg(args.dots + at) * exact * factor;
    }
  }
}

constexpr int kGradient = 32;  // weights both ways of a thread block

// <left_i, right_b> over pairs and positions: kGradient x kGradient weights a thread block, whose
// warps take turns at the positions. The launch is (tile, split of the pairs, matrix).
__global__ void __launch_bounds__(kThreads) row_gradient(const WeightGradientArgs args) {
  __shared__ float parts[kWarps][kGradient * kGradient];
  ptx::begin_after_previous();
  const int row0 = static_cast<int>(blockIdx.x) / args.tiles_n * kGradient;
  const int col0 = static_cast<int>(blockIdx.x) % args.tiles_n * kGradient;
  if (args.lower_only && col0 >= row0 + kGradient) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, quad = lane % 4, slots = args.entries;
  const int pairs = args.per_head ? args.pairs / args.heads : args.pairs;
  const int begin = static_cast<int>(static_cast<std::int64_t>(pairs) * blockIdx.y / gridDim.y);
  const int end = static_cast<int>(static_cast<std::int64_t>(pairs) * (blockIdx.y + 1) / gridDim.y);
  // The numbers of four positions; the sum does not care which column of a fragment holds which.
  const auto load = [&](const void* from, std::int64_t pair, int blocks, int block, int at) {
    float4 x = {};
    if (block < blocks && at < slots) {
      x = __ldcg(reinterpret_cast<const float4*>(static_cast<const float*>(from) +
                                                 (pair * blocks + block) * slots + at));
    }
    return make_uint4(ptx::round_tf32(x.x), ptx::round_tf32(x.y), ptx::round_tf32(x.z),
                      ptx::round_tf32(x.w));
  };

  float sums[2][4][4] = {};
  const int steps = (slots + 15) / 16;
#pragma unroll 2
  for (int n = begin * steps + warp; n < end * steps; n += kWarps) {
    const int unit = n / steps, at = (n - unit * steps) * 16 + quad * 4;
    const std::int64_t pair = args.per_head
                                  ? static_cast<std::int64_t>(unit) * args.heads + blockIdx.z
                                  : unit;
    uint4 a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = load(args.left, pair, args.q_blocks, row0 + i * 8 + group, at);
      b[i] = load(args.right, pair, args.k_blocks, col0 + i * 8 + group, at);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 &top = a[i / 4 * 2], &bottom = a[i / 4 * 2 + 1], &right = b[i % 4];
      float (&sum)[4] = sums[i / 4][i % 4];
      ptx::mma_tf32(sum, {top.x, bottom.x, top.y, bottom.y}, right.x, right.y);
      ptx::mma_tf32(sum, {top.z, bottom.z, top.w, bottom.w}, right.z, right.w);
    }
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = i / 16 * 16 + i % 4 / 2 * 8 + group, col = i / 4 % 4 * 8 + quad * 2 + i % 2;
    parts[warp][row * kGradient + col] = sums[i / 16][i / 4 % 4][i % 4];
  }
  __syncthreads();
  const std::int64_t matrix = args.matrix_first + blockIdx.z;
  float* to = args.partial + blockIdx.y * args.partial_stride +
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
