// The second pass: mixed summaries on the tensor cores, forward and transposed, and the gradient
// of the mixing weights.
#pragma once

#include "mhla/cuda/device/tile.cuh"
#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

inline constexpr int kMixThreads = 256;
inline constexpr int kMixDepth = 32;   // columns of the weights per step
inline constexpr int kMixStages = 3;

template <typename G, int MI, bool kTransposed>
struct Mix {
  static constexpr int kRows = MI * 16;
  static constexpr int kCols = 512 / static_cast<int>(sizeof(G));  // entries of a summary
  static constexpr int kNI = kCols / 64;                           // 8 warps side by side
  static constexpr int kWRows = kTransposed ? kMixDepth : kRows;   // weights as they are stored
  static constexpr int kWCols = kTransposed ? kRows : kMixDepth;
  static constexpr int kWLd = kWCols + kPad<G>, kSLd = kCols + kPad<G>;
  static constexpr int kStage = kWRows * kWLd + kMixDepth * kSLd;  // elements
  static constexpr int bytes(int steps) {
    const int stages = steps < kMixStages ? steps : kMixStages;
    const int pipeline = stages * kStage, staged = kRows * kSLd;
    return (pipeline > staged ? pipeline : staged) * static_cast<int>(sizeof(G));
  }
};

// S~_i = sum over b of m_ib S_b; transposed: dS_b = sum over i of m_ib dS~_i.
// One thread block per (pair, kCols entries, task).
template <typename G, int MI, bool kTransposed>
__global__ void __launch_bounds__(kMixThreads) mix(const MixArgs args) {
  using M = Mix<G, MI, kTransposed>;
  extern __shared__ __align__(16) unsigned char shared[];
  G* stages = reinterpret_cast<G*>(shared);

  const MixTask task = args.tasks[blockIdx.y];
  const int slices = args.entries / M::kCols;
  const int pair = blockIdx.x / slices, entry = blockIdx.x % slices * M::kCols;
  const G* weights = static_cast<const G*>(args.weights) +
                     (args.head_first + pair % args.heads) * args.weights_stride;
  const G* in = static_cast<const G*>(args.in) +
                (static_cast<std::int64_t>(pair) * args.in_blocks + task.in_first) * args.entries +
                entry;

  const auto start = [&](int step) {
    G* w_tile = stages + step % kMixStages * M::kStage;
    G* s_tile = w_tile + M::kWRows * M::kWLd;
    const int col = task.col_begin + step * kMixDepth;
    constexpr int kWPerRow = M::kWCols / kChunk<G>;
    for (int i = threadIdx.x; i < M::kWRows * kWPerRow; i += kMixThreads) {
      const int r = i / kWPerRow, c = i % kWPerRow * kChunk<G>;
      const std::int64_t row = kTransposed ? col + r : task.row + r;
      ptx::copy_async(w_tile + r * M::kWLd + c,
                      weights + row * args.weights_ld + (kTransposed ? task.row : col) + c, true);
    }
    constexpr int kSPerRow = M::kCols / kChunk<G>;
#pragma unroll
    for (int i = threadIdx.x; i < kMixDepth * kSPerRow; i += kMixThreads) {
      const int r = i / kSPerRow, c = i % kSPerRow * kChunk<G>;
      const bool valid = col + r < task.in_rows;
      const std::int64_t row = valid ? col + r : 0;
      ptx::copy_async(s_tile + r * M::kSLd + c, in + row * args.entries + c, valid);
    }
  };
  const int steps = (task.col_end - task.col_begin + kMixDepth - 1) / kMixDepth;
  for (int s = 0; s < kMixStages - 1; ++s) {
    if (s < steps) start(s);
    ptx::copy_commit();
  }

  Accumulator<MI, M::kNI> acc;
  clear(acc);
  const int warp_col = static_cast<int>(threadIdx.x) / 32 * M::kNI * 8;
  for (int step = 0; step < steps; ++step) {
    ptx::copy_wait<kMixStages - 2>();
    __syncthreads();
    if (step + kMixStages - 1 < steps) start(step + kMixStages - 1);
    ptx::copy_commit();
    const G* w_tile = stages + step % kMixStages * M::kStage;
    const G* s_tile = w_tile + M::kWRows * M::kWLd + warp_col;
    if constexpr (kTransposed) mma_AtB(acc, w_tile, M::kWLd, s_tile, M::kSLd, kMixDepth);
    else mma_AB(acc, w_tile, M::kWLd, s_tile, M::kSLd, kMixDepth);
  }

  // Out through shared memory, in whole lines.
  __syncthreads();
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    store_pair(stages + row * M::kSLd + warp_col + col, x, y);
  });
  __syncthreads();
  G* out = static_cast<G*>(args.out) +
           (static_cast<std::int64_t>(pair) * args.out_blocks + task.out_first) * args.entries +
           entry;
  constexpr int kPerRow = M::kCols / kChunk<G>;
  for (int i = threadIdx.x; i < M::kRows * kPerRow; i += kMixThreads) {
    const int r = i / kPerRow, c = i % kPerRow * kChunk<G>;
    if (task.row + r >= task.out_rows) break;
    *reinterpret_cast<Chunk*>(out + (task.row + r) * static_cast<std::int64_t>(args.entries) + c) =
        *reinterpret_cast<const Chunk*>(stages + r * M::kSLd + c);
  }
}

// kTile x kTile weights per thread block; 8 warps as kWM x kWN x kWK, the last over the entries.
template <typename G, int kTile_, int kWM_, int kWN_, int kWK_, int kDepth_>
struct WeightGradient {
  static constexpr int kTile = kTile_, kWM = kWM_, kWN = kWN_, kWK = kWK_;
  static_assert(kWM * kWN * kWK == kMixThreads / 32);
  static constexpr int kDepth = kDepth_ * 2 / static_cast<int>(sizeof(G));  // entries of a step
  static constexpr int kLd = kDepth + kPad<G>;
  static constexpr int kStage = 2 * kTile * kLd;
  static constexpr int kMI = kTile / 16 / kWM, kNI = kTile / 8 / kWN;
  static constexpr int kPipelineBytes = kMixStages * kStage * static_cast<int>(sizeof(G));
  static constexpr int kSumBytes = kWK * kTile * kTile * static_cast<int>(sizeof(float));
  static constexpr int kBytes = kPipelineBytes > kSumBytes ? kPipelineBytes : kSumBytes;
};

// Partial sums of dm_ib = <dS~_i, S_b>. One thread block per (split of the work, tile, matrix).
template <typename W, typename G>
__global__ void __launch_bounds__(kMixThreads) weight_gradient(const WeightGradientArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  G* stages = reinterpret_cast<G*>(shared);
  const int row0 = blockIdx.y / args.tiles_n * W::kTile;
  const int col0 = blockIdx.y % args.tiles_n * W::kTile;
  const int matrix = blockIdx.z;
  if (args.lower_only && col0 >= row0 + W::kTile) return;

  // The work of one matrix is a list of (pair, sequence, depth) steps, cut into equal splits.
  const int pairs = args.per_head ? args.pairs / args.heads : args.pairs;
  const int unit_steps = args.entries / W::kDepth;
  const std::int64_t total = static_cast<std::int64_t>(pairs) * args.sequence_count * unit_steps;
  const std::int64_t begin = total * blockIdx.x / gridDim.x;
  const int steps = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x - begin);

  const auto start = [&](int step) {
    G* left = stages + step % kMixStages * W::kStage;
    G* right = left + W::kTile * W::kLd;
    const std::int64_t unit = (begin + step) / unit_steps;
    const int entry = static_cast<int>((begin + step) % unit_steps) * W::kDepth;
    const MixSequence sequence = args.sequences[unit % args.sequence_count];
    std::int64_t pair = unit / args.sequence_count;
    if (args.per_head) pair = pair * args.heads + matrix;
    const G* from_left = static_cast<const G*>(args.left) +
                         (pair * args.q_blocks + sequence.q_first) * args.entries + entry;
    const G* from_right = static_cast<const G*>(args.right) +
                          (pair * args.k_blocks + sequence.k_first) * args.entries + entry;
    constexpr int kPerRow = W::kDepth / kChunk<G>;
#pragma unroll
    for (int i = threadIdx.x; i < W::kTile * kPerRow; i += kMixThreads) {
      const int r = i / kPerRow, c = i % kPerRow * kChunk<G>;
      const bool in_left = row0 + r < sequence.q_rows, in_right = col0 + r < sequence.k_rows;
      const std::int64_t row = in_left ? row0 + r : 0, col = in_right ? col0 + r : 0;
      ptx::copy_async(left + r * W::kLd + c, from_left + row * args.entries + c, in_left);
      ptx::copy_async(right + r * W::kLd + c, from_right + col * args.entries + c, in_right);
    }
  };
  for (int s = 0; s < kMixStages - 1; ++s) {
    if (s < steps) start(s);
    ptx::copy_commit();
  }

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int slice = warp / (W::kWM * W::kWN);
  const int m = warp / W::kWN % W::kWM * W::kMI * 16, n = warp % W::kWN * W::kNI * 8;
  constexpr int kSlice = W::kDepth / W::kWK;
  Accumulator<W::kMI, W::kNI> acc;
  clear(acc);
  for (int step = 0; step < steps; ++step) {
    ptx::copy_wait<kMixStages - 2>();
    __syncthreads();
    if (step + kMixStages - 1 < steps) start(step + kMixStages - 1);
    ptx::copy_commit();
    const G* left = stages + step % kMixStages * W::kStage;
    const G* right = left + W::kTile * W::kLd;
    mma_ABt(acc, left + m * W::kLd + slice * kSlice, W::kLd, right + n * W::kLd + slice * kSlice,
            W::kLd, kSlice);
  }

  // Add the slices in a fixed order.
  ptx::copy_wait<0>();
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared);
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    store_pair(sums + (slice * W::kTile + m + row) * W::kTile + n + col, x, y);
  });
  __syncthreads();
  float* out = args.partial + blockIdx.x * args.partial_stride +
               static_cast<std::int64_t>(args.matrix_first + matrix) * args.rows_padded *
                   args.cols_padded;
  for (int i = threadIdx.x; i < W::kTile * W::kTile; i += kMixThreads) {
    float total_sum = 0.f;
    for (int s = 0; s < W::kWK; ++s) total_sum += sums[s * W::kTile * W::kTile + i];
    out[(row0 + i / W::kTile) * args.cols_padded + col0 + i % W::kTile] = total_sum;
  }
}

}  // namespace mhla::cuda
