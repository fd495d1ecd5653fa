// The second pass: mixed summaries on the tensor cores, forward and transposed, and the gradient
// of the mixing weights.
#pragma once

#include "mhla/cuda/device/tile.cuh"
#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

inline constexpr int kMixThreads = 256;
inline constexpr int kMixDepth = 32;  // columns of the weights per step
inline constexpr int kMixStages = 3;

// 8 warps as kWM x (8 / kWM), each MI x NI tiles of 16 x 8; NI counts for 16-bit summaries.
template <typename G, int kWM_, int MI_, int NI_, bool kTransposed_>
struct Mix {
  static constexpr int kWM = kWM_, MI = MI_, NI = NI_ * 2 / static_cast<int>(sizeof(G));
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kRows = kWM * MI * 16;
  static constexpr int kWarpCols = NI * 8;
  static constexpr int kCols = 8 / kWM * kWarpCols;               // entries of a summary: a slab
  static constexpr int kWRows = kTransposed ? kMixDepth : kRows;  // weights as they are stored
  static constexpr int kWCols = kTransposed ? kRows : kMixDepth;
  static constexpr int kWLd = kWCols + kPad<G>, kSLd = kCols + kPad<G>,
                       kOutLd = kWarpCols + kPad<G>;
  static constexpr int kStage = kWRows * kWLd + kMixDepth * kSLd;  // elements
  static constexpr int kOut = 8 * 16 * kOutLd;                     // 16 rows of each warp
  static constexpr int kBytes = (kMixStages * kStage + kOut) * static_cast<int>(sizeof(G));
  static constexpr int kBlocks = MI * NI <= 8 ? 3 : 2;  // what the accumulators leave registers for
};

// S~_i = sum over b of m_ib S_b; transposed: dS_b = sum over i of m_ib dS~_i.
// One thread block per (pair, some slabs of entries, task).
template <typename M, typename G>
__global__ void __launch_bounds__(kMixThreads, M::kBlocks) mix(const MixArgs args) {
  ptx::begin_after_previous();
  extern __shared__ __align__(16) unsigned char shared[];
  G* stages = reinterpret_cast<G*>(shared);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  G* staged = stages + kMixStages * M::kStage + warp * 16 * M::kOutLd;

  // Tasks of the same entries are neighbours: what one reads the others find in the L2 cache.
  const MixTask task = args.tasks[blockIdx.x % args.task_count];
  const int slabs = (args.entries + M::kCols - 1) / M::kCols;
  const int runs = (slabs + args.slabs_per_block - 1) / args.slabs_per_block;
  const int run = blockIdx.x / args.task_count, pair = run / runs;
  const int slab0 = run % runs * args.slabs_per_block;
  const int slab_count = min(args.slabs_per_block, slabs - slab0);
  const G* weights = static_cast<const G*>(args.weights) +
                     (args.head_first + pair % args.heads) * args.weights_stride;
  const G* in = static_cast<const G*>(args.in) +
                (static_cast<std::int64_t>(pair) * args.in_blocks + task.in_first) * args.entries;
  G* out = static_cast<G*>(args.out) +
           (static_cast<std::int64_t>(pair) * args.out_blocks + task.out_first) * args.entries;

  // Steps run through the columns of the weights, slab after slab.
  const int slab_steps = (task.col_end - task.col_begin + kMixDepth - 1) / kMixDepth;
  const int steps = slab_steps * slab_count;
  constexpr int kWPerRow = M::kWCols / kChunk<G>, kSPerRow = M::kCols / kChunk<G>;
  constexpr int kSRows = kMixThreads / kSPerRow;  // rows of summaries that all threads copy at once
  static_assert(kMixThreads % kSPerRow == 0 && kMixDepth % kSRows == 0);
  const int row_s = static_cast<int>(threadIdx.x / kSPerRow);
  const int col_s = static_cast<int>(threadIdx.x % kSPerRow) * kChunk<G>;
  int next_entry = slab0 * M::kCols, next_col = task.col_begin;  // what `start` loads
  const auto start = [&](int step) {
    G* w_tile = stages + step % kMixStages * M::kStage;
    G* s_tile = w_tile + M::kWRows * M::kWLd;
    const G* from_w = weights +
                      static_cast<std::int64_t>(M::kTransposed ? next_col : task.row) *
                          args.weights_ld +
                      (M::kTransposed ? task.row : next_col);
    for (int i = threadIdx.x; i < M::kWRows * kWPerRow; i += kMixThreads) {
      const int r = i / kWPerRow, c = i % kWPerRow * kChunk<G>;
      ptx::copy_async(w_tile + r * M::kWLd + c, from_w + r * args.weights_ld + c, true);
    }
    const bool inside = next_entry + col_s < args.entries;
    const G* from = in + static_cast<std::int64_t>(next_col + row_s) * args.entries + next_entry +
                    col_s;
#pragma unroll
    for (int r = 0; r < kMixDepth; r += kSRows) {
      const bool valid = inside && next_col + row_s + r < task.in_rows;
      ptx::copy_async(s_tile + (row_s + r) * M::kSLd + col_s, from, valid);
      from += kSRows * static_cast<std::int64_t>(args.entries);
    }
    next_col += kMixDepth;
    if (next_col >= task.col_end) {
      next_col = task.col_begin;
      next_entry += M::kCols;
    }
  };
  for (int s = 0; s < kMixStages - 1; ++s) {
    if (s < steps) start(s);
    ptx::copy_commit();
  }

  const int m0 = warp / (8 / M::kWM) * M::MI * 16, n0 = warp % (8 / M::kWM) * M::kWarpCols;
  for (int slab = 0, step = 0; slab < slab_count; ++slab) {
    Accumulator<M::MI, M::NI> acc;
    clear(acc);
    for (int s = 0; s < slab_steps; ++s, ++step) {
      ptx::copy_wait<kMixStages - 2>();
      __syncthreads();
      if (step + kMixStages - 1 < steps) start(step + kMixStages - 1);
      ptx::copy_commit();
      const G* w_tile = stages + step % kMixStages * M::kStage;
      const G* s_tile = w_tile + M::kWRows * M::kWLd + n0;
      if constexpr (M::kTransposed) mma_AtB(acc, w_tile + m0, M::kWLd, s_tile, M::kSLd, kMixDepth);
      else mma_AB(acc, w_tile + m0 * M::kWLd, M::kWLd, s_tile, M::kSLd, kMixDepth);
    }

    // Out through the warp's own shared memory, 16 rows at a time, in whole sectors.
    constexpr int kPerRow = M::kWarpCols / kChunk<G>, kRowsAtOnce = 32 / kPerRow;
    const int r0 = lane / kPerRow, c = lane % kPerRow * kChunk<G>;
    const int entry = (slab0 + slab) * M::kCols + n0 + c;
    G* to = out + static_cast<std::int64_t>(task.row + m0 + r0) * args.entries + entry;
    int row = entry < args.entries ? task.row + m0 + r0 : task.out_rows;
#pragma unroll
    for (int i = 0; i < M::MI; ++i) {
#pragma unroll
      for (int j = 0; j < M::NI; ++j) {
        G* at = staged + lane / 4 * M::kOutLd + j * 8 + lane % 4 * 2;
        store_pair(at, acc[i][j][0], acc[i][j][1]);
        store_pair(at + 8 * M::kOutLd, acc[i][j][2], acc[i][j][3]);
      }
      ptx::sync_warp();
#pragma unroll
      for (int r = 0; r < 16; r += kRowsAtOnce) {
        if (row < task.out_rows) {
          *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(staged +
                                                                          (r0 + r) * M::kOutLd + c);
        }
        row += kRowsAtOnce;
        to += kRowsAtOnce * static_cast<std::int64_t>(args.entries);
      }
      ptx::sync_warp();
    }
  }
}

// kTile x kTile weights per thread block; warps as kWM x kWN x kWK, the last over the entries.
template <typename G, int kTile_, int kWM_, int kWN_, int kWK_, int kDepth_>
struct WeightGradient {
  static constexpr int kTile = kTile_, kWM = kWM_, kWN = kWN_, kWK = kWK_;
  static constexpr int kThreads = kWM * kWN * kWK * 32;
  static constexpr int kDepth = kDepth_ * 2 / static_cast<int>(sizeof(G));  // entries of a step
  static constexpr int kLd = kDepth + kPad<G>;
  static constexpr int kStage = 2 * kTile * kLd;
  static constexpr int kMI = kTile / 16 / kWM, kNI = kTile / 8 / kWN;
  static constexpr int kPipelineBytes = kMixStages * kStage * static_cast<int>(sizeof(G));
  static constexpr int kSumBytes = kWK * kTile * kTile * static_cast<int>(sizeof(float));
  static constexpr int kBytes = kPipelineBytes > kSumBytes ? kPipelineBytes : kSumBytes;
};

// Partial sums of dm_ib = <dS~_i, S_b>. One thread block per (tile, split of the work, matrix).
template <typename W, typename G>
__global__ void __launch_bounds__(W::kThreads, W::kTile <= 16 ? 4 : 2)
    weight_gradient(const WeightGradientArgs args) {
  ptx::begin_after_previous();
  extern __shared__ __align__(16) unsigned char shared[];
  G* stages = reinterpret_cast<G*>(shared);
  const int row0 = static_cast<int>(blockIdx.x) / args.tiles_n * W::kTile;
  const int col0 = static_cast<int>(blockIdx.x) % args.tiles_n * W::kTile;
  const int matrix = blockIdx.z;
  if (args.lower_only && col0 >= row0 + W::kTile) return;

  // The work of one matrix is a list of (pair, sequence, depth) steps, cut into equal splits.
  const int pairs = args.per_head ? args.pairs / args.heads : args.pairs;
  const int unit_steps = (args.entries + W::kDepth - 1) / W::kDepth;
  const std::int64_t total = static_cast<std::int64_t>(pairs) * args.sequence_count * unit_steps;
  const std::int64_t begin = total * blockIdx.y / gridDim.y;
  const int steps = static_cast<int>(total * (blockIdx.y + 1) / gridDim.y - begin);

  std::int64_t unit = begin / unit_steps;  // what `start` loads next
  int unit_step = static_cast<int>(begin % unit_steps);
  const auto start = [&](int step) {
    G* left = stages + step % kMixStages * W::kStage;
    G* right = left + W::kTile * W::kLd;
    const int entry = unit_step * W::kDepth;
    const MixSequence sequence = args.sequences[unit % args.sequence_count];
    std::int64_t pair = unit / args.sequence_count;
    if (args.per_head) pair = pair * args.heads + matrix;
    const G* from_left = static_cast<const G*>(args.left) +
                         (pair * args.q_blocks + sequence.q_first) * args.entries + entry;
    const G* from_right = static_cast<const G*>(args.right) +
                          (pair * args.k_blocks + sequence.k_first) * args.entries + entry;
    constexpr int kPerRow = W::kDepth / kChunk<G>;
#pragma unroll
    for (int i = threadIdx.x; i < W::kTile * kPerRow; i += W::kThreads) {
      const int r = i / kPerRow, c = i % kPerRow * kChunk<G>;
      const bool inside = entry + c < args.entries;
      const bool in_left = inside && row0 + r < sequence.q_rows;
      const bool in_right = inside && col0 + r < sequence.k_rows;
      const std::int64_t row = static_cast<std::int64_t>(row0 + r) * args.entries + c;
      const std::int64_t col = static_cast<std::int64_t>(col0 + r) * args.entries + c;
      ptx::copy_async(left + r * W::kLd + c, from_left + row, in_left);
      ptx::copy_async(right + r * W::kLd + c, from_right + col, in_right);
    }
    if (++unit_step == unit_steps) {
      unit_step = 0;
      ++unit;
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
  float* out = args.partial + blockIdx.y * args.partial_stride +
               static_cast<std::int64_t>(args.matrix_first + matrix) * args.rows_padded *
                   args.cols_padded;
  for (int i = threadIdx.x; i < W::kTile * W::kTile; i += W::kThreads) {
    float total_sum = 0.f;
    for (int s = 0; s < W::kWK; ++s) total_sum += sums[s * W::kTile * W::kTile + i];
    const std::int64_t row = row0 + i / W::kTile;
    out[row * args.cols_padded + col0 + i % W::kTile] = total_sum;
  }
}

}  // namespace mhla::cuda
