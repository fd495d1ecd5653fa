// The second pass for one sequence of 97 to 256 blocks in bf16: thread blocks that stay, keep all
// weights (up to 160: or all their gradients) and let the summaries stream by, each read once.
#pragma once

#include "mhla/cuda/device/tile.cuh"
#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

// kBlocks blocks at most. Eight warps as kWM x (8 / kWM), each MI * 16 rows by 32 entries of a
// slab.
template <int kBlocks_, int kWM, int kStages_>
struct ResidentMix {
  static constexpr int kBlocks = kBlocks_, kThreads = 256, kStages = kStages_;
  static constexpr int kWN = 8 / kWM, MI = kBlocks / 16 / kWM;
  static constexpr int kCols = 32 * kWN;  // entries of a slab
  static constexpr int kWLd = kBlocks + 8, kSLd = kCols + 8, kOutLd = 32 + 8;
  static constexpr int kWeights = kBlocks * kWLd, kStage = kBlocks * kSLd;
  static constexpr int kPerRow = kCols / 8, kRowStep = kThreads / kPerRow;  // of a copy
  static constexpr int kBytes = 2 * (kWeights + kStages * kStage + kThreads / 32 * 16 * kOutLd);
  static_assert(MI * 16 * kWM == kBlocks && kBlocks % kRowStep == 0);
};

// As `mix` of mixing.cuh.
template <typename M, bool kTransposed>
__global__ void __launch_bounds__(M::kThreads, 1) mix_resident(const MixArgs args) {
  ptx::begin_after_previous();
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* weights = reinterpret_cast<bf16*>(shared);
  bf16* stages = weights + M::kWeights;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  bf16* staged = stages + M::kStages * M::kStage + warp * 16 * M::kOutLd;

  const int slabs = (args.entries + M::kCols - 1) / M::kCols;
  const int row_s = static_cast<int>(threadIdx.x / M::kPerRow);
  const int col_s = static_cast<int>(threadIdx.x % M::kPerRow) * 8;
  int next = blockIdx.x, next_stage = 0;  // what `start` loads, and where
  const auto start = [&] {
    if (next < args.task_count) {
      const int pair = next / slabs, entry = (next - pair * slabs) * M::kCols + col_s;
      const bf16* from = static_cast<const bf16*>(args.in) +
                         (static_cast<std::int64_t>(pair) * args.in_blocks + row_s) * args.entries +
                         entry;
      bf16* to = stages + next_stage * M::kStage + row_s * M::kSLd + col_s;
#pragma unroll
      for (int r = 0; r < M::kBlocks; r += M::kRowStep) {
        if (row_s + r < args.in_blocks) {
          ptx::copy_async(to + r * M::kSLd, from, entry < args.entries);
        }
        from += M::kRowStep * static_cast<std::int64_t>(args.entries);
      }
      next += static_cast<int>(gridDim.x);
    }
    ptx::copy_commit();
    next_stage = next_stage + 1 == M::kStages ? 0 : next_stage + 1;
  };
  // Weights as they are stored, [q block][k block], and zeros where there is none.
  const int rows = kTransposed ? args.in_blocks : args.out_blocks;
  const int cols = kTransposed ? args.out_blocks : args.in_blocks;
  for (int i = threadIdx.x; i < M::kBlocks * (M::kBlocks / 8); i += M::kThreads) {
    const int row = i / (M::kBlocks / 8), col = i % (M::kBlocks / 8) * 8;
    const bool valid = row < rows && col < cols;
    ptx::copy_async(weights + row * M::kWLd + col,
                    static_cast<const bf16*>(args.weights) +
                        (valid ? static_cast<std::int64_t>(row) * args.weights_ld + col : 0),
                    valid);
  }
  for (int i = 0; i < M::kStages - 1; ++i) start();
  const int unused = (M::kBlocks - args.in_blocks) * (M::kSLd / 8);
  for (int i = threadIdx.x; i < M::kStages * unused; i += M::kThreads) {
    bf16* rest = stages + i / unused * M::kStage + args.in_blocks * M::kSLd;
    reinterpret_cast<Chunk*>(rest)[i % unused] = Chunk{};
  }

  const int m0 = warp / M::kWN * M::MI * 16, n0 = warp % M::kWN * 32;
  const int depth = (args.in_blocks + 15) / 16 * 16;
  int stage = 0;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.task_count; task += static_cast<int>(gridDim.x)) {
    ptx::copy_wait<M::kStages - 2>();
    __syncthreads();  // the slab is there, and the stage before it is free
    start();
    const bf16* s_tile = stages + stage * M::kStage + n0;
    Accumulator<M::MI, 4> acc;
    clear(acc);
    if constexpr (kTransposed) mma_AtB(acc, weights + m0, M::kWLd, s_tile, M::kSLd, depth);
    else mma_AB(acc, weights + m0 * M::kWLd, M::kWLd, s_tile, M::kSLd, depth);
    stage = stage + 1 == M::kStages ? 0 : stage + 1;

    // Out through the warp's own shared memory, 16 rows at a time, in whole sectors.
    const int pair = task / slabs, r0 = lane / 4, c = lane % 4 * 8;
    const int entry = (task - pair * slabs) * M::kCols + n0 + c;
    bf16* to = static_cast<bf16*>(args.out) +
               (static_cast<std::int64_t>(pair) * args.out_blocks + m0 + r0) * args.entries + entry;
    int row = entry < args.entries ? m0 + r0 : args.out_blocks;
#pragma unroll
    for (int i = 0; i < M::MI; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        bf16* at = staged + lane / 4 * M::kOutLd + j * 8 + lane % 4 * 2;
        store_pair(at, acc[i][j][0], acc[i][j][1]);
        store_pair(at + 8 * M::kOutLd, acc[i][j][2], acc[i][j][3]);
      }
      ptx::sync_warp();
#pragma unroll
      for (int r = 0; r < 16; r += 8) {
        if (row < args.out_blocks) {
          *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(staged +
                                                                          (r0 + r) * M::kOutLd + c);
        }
        row += 8;
        to += 8 * static_cast<std::int64_t>(args.entries);
      }
      ptx::sync_warp();
    }
  }
  ptx::copy_wait<0>();
}

// All gradients of 160 x 160 weights are sums in the registers of one thread block.
struct ResidentGradient {
  static constexpr int kBlocks = 160;
  static constexpr int kThreads = 320, kStages = 4;
  static constexpr int kDepth = 64, kLd = kDepth + 8;  // entries of a step
  static constexpr int kSide = kBlocks * kLd, kStage = 2 * kSide;
  static constexpr int kBytes = 2 * kStages * kStage;
};

// As `weight_gradient` of mixing.cuh. Ten warps, each 32 rows by 80 columns of all weights.
__global__ void __launch_bounds__(ResidentGradient::kThreads, 1)
    weight_gradient_resident(const WeightGradientArgs args) {
  ptx::begin_after_previous();
  using W = ResidentGradient;
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* stages = reinterpret_cast<bf16*>(shared);

  // The work is a list of (pair, step), cut into equal splits.
  const int pair_steps = (args.entries + W::kDepth - 1) / W::kDepth;
  const std::int64_t total = static_cast<std::int64_t>(args.pairs) * pair_steps;
  const std::int64_t begin = total * blockIdx.y / gridDim.y;
  const int steps = static_cast<int>(total * (blockIdx.y + 1) / gridDim.y - begin);
  std::int64_t pair = begin / pair_steps;  // what `start` loads next
  int step = static_cast<int>(begin % pair_steps), left_to_start = steps, next_stage = 0;
  const int row_s = static_cast<int>(threadIdx.x / 8);
  const int col_s = static_cast<int>(threadIdx.x % 8) * 8;
  const auto start = [&] {
    if (left_to_start > 0) {
      const int entry = step * W::kDepth + col_s;
      const bool inside = entry < args.entries;
      const bf16* from_left = static_cast<const bf16*>(args.left) +
                              (pair * args.q_blocks + row_s) * args.entries + entry;
      const bf16* from_right = static_cast<const bf16*>(args.right) +
                               (pair * args.k_blocks + row_s) * args.entries + entry;
      bf16* to = stages + next_stage * W::kStage + row_s * W::kLd + col_s;
#pragma unroll
      for (int r = 0; r < W::kBlocks; r += W::kThreads / 8) {
        if (row_s + r < args.q_blocks) ptx::copy_async(to + r * W::kLd, from_left, inside);
        if (row_s + r < args.k_blocks) {
          ptx::copy_async(to + W::kSide + r * W::kLd, from_right, inside);
        }
        from_left += W::kThreads / 8 * static_cast<std::int64_t>(args.entries);
        from_right += W::kThreads / 8 * static_cast<std::int64_t>(args.entries);
      }
      --left_to_start;
      if (++step == pair_steps) {
        step = 0;
        ++pair;
      }
    }
    ptx::copy_commit();
    next_stage = next_stage + 1 == W::kStages ? 0 : next_stage + 1;
  };
  for (int i = 0; i < W::kStages - 1; ++i) start();
  // Rows without a block.
  const auto clear_rows = [&](int side, int first) {
    const int unused = (W::kBlocks - first) * (W::kLd / 8);
    for (int i = threadIdx.x; i < W::kStages * unused; i += W::kThreads) {
      bf16* rest = stages + i / unused * W::kStage + side * W::kSide + first * W::kLd;
      reinterpret_cast<Chunk*>(rest)[i % unused] = Chunk{};
    }
  };
  clear_rows(0, args.q_blocks);
  clear_rows(1, args.k_blocks);

  const int warp = static_cast<int>(threadIdx.x / 32), m0 = warp / 2 * 32, n0 = warp % 2 * 80;
  Accumulator<2, 10> acc;
  clear(acc);
  int stage = 0;
#pragma unroll 1
  for (int done = 0; done < steps; ++done) {
    ptx::copy_wait<W::kStages - 2>();
    __syncthreads();
    start();
    const bf16* left = stages + stage * W::kStage;
    mma_ABt(acc, left + m0 * W::kLd, W::kLd, left + W::kSide + n0 * W::kLd, W::kLd, W::kDepth);
    stage = stage + 1 == W::kStages ? 0 : stage + 1;
  }
  ptx::copy_wait<0>();
  float* out = args.partial + blockIdx.y * args.partial_stride;
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    store_pair(out + (m0 + row) * args.cols_padded + n0 + col, x, y);
  });
}

}  // namespace mhla::cuda
