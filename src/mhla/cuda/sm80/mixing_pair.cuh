// Mixing for the backward of up to 32 causal blocks: S~ = m S and dS = m^T dS~ in the place of S
// and dS~, and the gradient of m, while both are on the chip. They are read once and written once.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

// A warp works alone on 64 entries of all blocks at a time, with tiles of its own in flight.
struct PairMix {
  static constexpr int kBlocks = 32, kEntries = 64;
  static constexpr int kWarps = 8, kStages = 3, kThreads = 32 * kWarps;
  static constexpr int kTile = kBlocks * kEntries * 2, kStage = 2 * kTile;  // bytes
  static constexpr int kBytes = kWarps * kStages * kStage;

  // Rows of 128 bytes, their chunks of 16 bytes swizzled over the banks.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * 128 + ((chunk ^ (row % 8)) * 16);
  }
};

// Weights as first factors of the products: rows 16 i and on, columns 16 k and on.
struct PairWeights {
  std::uint32_t m[3][4];  // (i, k) = (0, 0), (1, 0), (1, 1); zero above

  template <bool kTransposed>
  __device__ __forceinline__ void load(const bf16* weights, int ld) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int t = 0; t < 3; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = (t > 0) * 16 + lane / 4 + e % 2 * 8;
        const int col = (t > 1) * 16 + lane % 4 * 2 + e / 2 * 8;
        // NOTE: transposed tiles are (0, 0), (0, 1), (1, 1) of m^T.
        const int row_t = (t > 1) * 16 + lane / 4 + e % 2 * 8;
        const int col_t = (t > 0) * 16 + lane % 4 * 2 + e / 2 * 8;
        const bf16 lo = kTransposed ? weights[col_t * ld + row_t] : weights[row * ld + col];
        const bf16 hi = kTransposed ? weights[(col_t + 1) * ld + row_t]
                                    : weights[row * ld + col + 1];
        m[t][e] = lo.bits | static_cast<std::uint32_t>(hi.bits) << 16;
      }
    }
  }
};

// All of a tile as second factors of the products.
struct PairFactors {
  std::uint32_t b[PairMix::kEntries / 16][2][4];  // 16 entries, 16 blocks

  __device__ __forceinline__ explicit PairFactors(const unsigned char* tile) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < PairMix::kEntries / 8; ++i) {
      ptx::load_matrix_transposed(
          b[i / 2][i % 2], tile + PairMix::place(i % 2 * 16 + lane % 16, i / 2 * 2 + lane / 16));
    }
  }
  // m times the tile, or m^T times it, in its place. NOTE: all lanes must have loaded theirs.
  template <bool kTransposed>
  __device__ __forceinline__ void mix(unsigned char* tile, const PairWeights& w) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int s = 0; s < PairMix::kEntries / 16; ++s) {
      float c[2][2][4] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const std::uint32_t *low = b[s][0] + 2 * n, *high = b[s][1] + 2 * n;
        ptx::mma_bf16(c[0][n], w.m[0], low[0], low[1]);
        if constexpr (kTransposed) {
          ptx::mma_bf16(c[0][n], w.m[1], high[0], high[1]);
        } else {
          ptx::mma_bf16(c[1][n], w.m[1], low[0], low[1]);
        }
        ptx::mma_bf16(c[1][n], w.m[2], high[0], high[1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = c[i / 2][i % 2];
        unsigned char* at = tile + PairMix::place(i / 2 * 16 + lane / 4, 2 * s + i % 2) +
                            lane % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(at) = ptx::pack_bf16(x[0], x[1]);
        *reinterpret_cast<std::uint32_t*>(at + 8 * 128) = ptx::pack_bf16(x[2], x[3]);
      }
    }
  }
};

// sum[i][b] += <left_i, right_b> over the entries of a tile; nothing above the diagonal of tiles.
__device__ __forceinline__ void add_gradient(float (&sum)[2][4][4], const unsigned char* left,
                                             const unsigned char* right) {
  using P = PairMix;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int s = 0; s < P::kEntries / 16; ++s) {
    std::uint32_t a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::load_matrix(a[i], left + P::place(i * 16 + lane % 16, 2 * s + lane / 16));
      ptx::load_matrix(b[i],
                       right + P::place(i * 16 + lane / 16 * 8 + lane % 8, 2 * s + lane / 8 % 2));
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n < 2) ptx::mma_bf16(sum[0][n], a[0], b[0][2 * n], b[0][2 * n + 1]);
      ptx::mma_bf16(sum[1][n], a[1], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
}

// Some of the tiles: `first` and every `step`-th after it.
struct PairShare {
  int first, step;
};
// Between kernels nothing has to be waited for.
struct PairAlone {
  static constexpr bool kZeros = true;  // S~ of the first block and dS of the last are read
  __device__ __forceinline__ void await(int) const {}
  __device__ __forceinline__ void done(int) const {}
};

// The tiles of a warp. `order` says when the summaries of a pair are there, and is told of every
// tile that was mixed.
template <typename Order>
__device__ __forceinline__ void mix_share(const PairMixArgs& args, unsigned char* stages,
                                          PairShare share, float (&sum)[2][4][4],
                                          const Order& order) {
  using P = PairMix;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tiles_of_pair = args.entries / P::kEntries, tiles = args.pairs * tiles_of_pair;
  // NOTE: from the last to the first: what was written last is still in the L2 cache.
  const auto pair_of = [&](int number) {
    return (args.backwards ? tiles - 1 - number : number) / tiles_of_pair;
  };
  // Element offset of a lane's first chunk: eight lanes a row, four rows at a time.
  const auto offset = [&](int number) {
    const int tile = args.backwards ? tiles - 1 - number : number;
    const std::int64_t slot = tile / tiles_of_pair % args.slots;
    return (slot * args.blocks + lane / 8) * args.entries + tile % tiles_of_pair * P::kEntries +
           lane % 8 * 8;
  };
  const auto start = [&](int tile, int stage) {
    if (tile < tiles) {
      order.await(pair_of(tile));
      const std::int64_t from = offset(tile);
#pragma unroll
      for (int r = 0; r < P::kBlocks; r += 4) {
        const int row = r + lane / 8;
        // Nothing reads S of the last block or dS~ of the first; they may not have been made.
        const bool valid = row < args.blocks - 1, valid_d = row > 0 && row < args.blocks;
        const std::int64_t at = from + static_cast<std::int64_t>(r) * args.entries;
        unsigned char* to = stages + stage * P::kStage + P::place(row, lane % 8);
        ptx::copy_async(to, args.summaries + (valid ? at : 0), valid);
        ptx::copy_async(to + P::kTile, args.gradients + (valid_d ? at : 0), valid_d);
      }
    }
    ptx::copy_commit();
  };
#pragma unroll
  for (int s = 0; s < P::kStages; ++s) start(share.first + s * share.step, s);
  PairWeights forward, back;
  forward.load<false>(args.weights, args.weights_ld);
  back.load<true>(args.weights, args.weights_ld);

  int stage = 0, before = -1;
  for (int tile = share.first; tile < tiles; tile += share.step) {
    ptx::copy_wait<P::kStages - 1>();
    ptx::sync_warp();
    unsigned char *s = stages + stage * P::kStage, *ds = s + P::kTile;
    const PairFactors factors(s), d_factors(ds);
    add_gradient(sum, ds, s);
    ptx::sync_warp();
    factors.mix<false>(s, forward);
    d_factors.mix<true>(ds, back);
    ptx::sync_warp();
    if (before >= 0) order.done(before);  // its stores have had time to get there
    before = pair_of(tile);
    const std::int64_t to = offset(tile);
#pragma unroll
    for (int r = 0; r < P::kBlocks; r += 4) {
      const int row = r + lane / 8, at = P::place(row, lane % 8);
      if (row >= args.blocks) break;
      const std::int64_t out = to + static_cast<std::int64_t>(r) * args.entries;
      if (row > 0 || Order::kZeros) {
        *reinterpret_cast<Chunk*>(args.summaries + out) = *reinterpret_cast<const Chunk*>(s + at);
      }
      if (row < args.blocks - 1 || Order::kZeros) {
        *reinterpret_cast<Chunk*>(args.gradients + out) = *reinterpret_cast<const Chunk*>(ds + at);
      }
    }
    ptx::sync_warp();  // the stage has been read
    start(tile + P::kStages * share.step, stage);
    stage = stage == P::kStages - 1 ? 0 : stage + 1;
  }
  if (before >= 0) order.done(before);
  ptx::copy_wait<0>();
}

// Sums of a thread block's warps, added up in a fixed order. `sync` is a barrier of the warps.
template <typename Sync>
__device__ __forceinline__ void store_pair_sums(const PairMixArgs& args, float* sums, int block,
                                                const float (&sum)[2][4][4], const Sync& sync) {
  using P = PairMix;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  sync();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = i * 16 + lane / 4 + e / 2 * 8, col = n * 8 + lane % 4 * 2 + e % 2;
        sums[(warp * P::kBlocks + row) * P::kBlocks + col] = sum[i][n][e];
      }
    }
  }
  sync();
  float* partial = args.partial + block * args.partial_stride;
  for (int i = static_cast<int>(threadIdx.x); i < P::kBlocks * P::kBlocks; i += P::kThreads) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < P::kWarps; ++w) total += sums[w * P::kBlocks * P::kBlocks + i];
    const int row = i / P::kBlocks, col = i % P::kBlocks;
    if (row >= args.blocks || col >= args.blocks) continue;
    float& sum_of_all = partial[row * args.partial_ld + col];
    sum_of_all = args.add ? sum_of_all + total : total;
  }
}

}  // namespace mhla::cuda
