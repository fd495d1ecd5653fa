// The whole forward of one head in one thread block: block summaries are made, mixed and read
// without leaving shared memory, so q, k, v are read once, o is written once, and nothing else
// crosses the memory bus. Warps work alone: two barriers per head. See docs/kernels/fused.md.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/fused_args.h"
#include "mhla/cuda/sm90/fused_tile.cuh"

namespace mhla::cuda::sm90 {

// A warp's walk over row tiles: blocks warp, warp + warps, ..., tile by tile.
template <typename F>
struct TileWalk {
  const DeviceBlock* table;
  int blocks, warps, count;  // count: tokens of every block of a regular layout
  int block, first;
  DeviceBlock at;

  __device__ __forceinline__ TileWalk(const DeviceBlock* table, int blocks, int count, int warp,
                                      int warps)
      : table(table), blocks(blocks), warps(warps), count(count), block(warp), first(0) {
    arrive();
  }
  __device__ __forceinline__ bool done() const { return block >= blocks; }
  __device__ __forceinline__ int rows() const { return (F::kIsRegular ? count : at.count) - first; }
  __device__ __forceinline__ void next() {
    first += kFusedRows;
    if (rows() > 0) return;
    first = 0;
    block += warps;
    arrive();
  }

 private:
  __device__ __forceinline__ void arrive() {
    if (!done()) at = table[block];
  }
};

// S_b = sum of phi(k) v^T (Eq. 3). Rows of v end in a one, so column D of S_b is z_b. The first
// tile is on its way while other warps still read the summaries of the head before.
template <typename F>
__device__ __forceinline__ void fused_summaries(const FusedArgs& args, const PackedMap& map,
                                                int batch, int head, int warp, int warps,
                                                const int* offsets, bf16* tiles, bf16* summaries) {
  const bf16* k = args.k.head<const bf16>(batch, head);
  const bf16* v = args.v.head<const bf16>(batch, head);
  F::write_ones(tiles + F::kTile);  // a tile of outputs was here
  F::write_ones(tiles + 3 * F::kTile);

  TileWalk<F> loads(args.k_table, args.k_blocks, args.k_tokens, warp, warps), work = loads;
  int loaded = 0;
  const auto start = [&] {
    if (!loads.done()) {
      bf16* tile = tiles + loaded++ % 2 * 2 * F::kTile;
      const typename F::Rows rows(offsets, loads.at, loads.first);
      F::load(tile, k, args.k, rows, args.dk);
      F::load(tile + F::kTile, v, args.v, rows, args.dv);
      loads.next();
    }
    ptx::copy_commit();
  };
  start();
  __syncthreads();

  for (int step = 0; !work.done();) {
    const int block = work.block;
    float acc[F::D / 16][F::D / 8 + 1][4] = {};
    for (; work.block == block; work.next(), ++step) {
      start();
      ptx::copy_wait<1>();
      bf16* k_tile = tiles + step % 2 * 2 * F::kTile;
      F::map(k_tile, args.map, work.rows(), args.dk);
      __syncwarp();
      F::add_products(acc, map, k_tile, k_tile + F::kTile);
      __syncwarp();
    }
    bf16* summary = summaries + block * F::kSummary;
#pragma unroll
    for (int i = 0; i < F::D / 16; ++i) F::store_rows(summary + i * 16 * F::kLd, acc[i]);
  }
}

// S~ = m S in place (Eq. 4): a warp owns eight entries of every summary, all blocks at once. The
// weights stay in registers as mma operands for all entries.
template <typename F>
__device__ __forceinline__ void fused_mix(const FusedArgs& args, int head, int warp, int warps,
                                          bf16* summaries) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const float* mixing = args.mixing + head * args.mixing_head_stride;
  const auto weight = [&](int i, int b) {
    return i < args.q_blocks && b < args.k_blocks ? mixing[i * args.mixing_row_stride + b] : 0.f;
  };
  std::uint32_t m[F::MB][F::MB][4];  // [row tile][column tile]
#pragma unroll
  for (int i = 0; i < F::MB; ++i)
#pragma unroll
    for (int b = 0; b < F::MB; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = i * 16 + g + (e % 2) * 8, col = b * 16 + t * 2 + (e / 2) * 8;
        m[i][b][e] = ptx::pack_bf16(weight(row, col), weight(row, col + 1));
      }

  // Several entries at a time, so that one's loads hide behind another's products.
  constexpr int kBatch = F::MB == 1 ? 4 : F::MB == 2 ? 2 : 1;
  static_assert(F::kEntries % (8 * kBatch) == 0);
  bf16* own = summaries + lane % 16 * F::kSummary;  // this lane names one block of every 16
  for (int entry = warp * 8 * kBatch; entry < F::kEntries; entry += warps * 8 * kBatch) {
    std::uint32_t s[kBatch][F::MB][2];
#pragma unroll
    for (int e = 0; e < kBatch; ++e)
#pragma unroll
      for (int b = 0; b < F::MB; ++b) {
        ptx::load_matrix_pair_transposed(s[e][b], own + b * 16 * F::kSummary + entry + e * 8);
      }
#pragma unroll
    for (int e = 0; e < kBatch; ++e)
#pragma unroll
      for (int i = 0; i < F::MB; ++i) {
        float c[4] = {};
#pragma unroll
        for (int b = 0; b < F::MB; ++b) ptx::mma_bf16(c, m[i][b], s[e][b][0], s[e][b][1]);
        ptx::store_matrix_2(own + i * 16 * F::kSummary + entry + e * 8, ptx::pack_bf16(c[0], c[1]),
                            ptx::pack_bf16(c[2], c[3]));
      }
  }
}

// The queries of a warp, kFusedTiles - 1 row tiles ahead.
template <typename F>
struct QueryRing {
  const FusedArgs& args;
  const bf16* q;
  const int* offsets;
  bf16* tiles;
  TileWalk<F> loads, work;
  int loaded = 0, step = 0;

  __device__ __forceinline__ QueryRing(const FusedArgs& args, int batch, int head, int warp,
                                       int warps, const int* offsets, bf16* tiles)
      : args(args),
        q(args.q.head<const bf16>(batch, head)),
        offsets(offsets),
        tiles(tiles),
        loads(args.q_table, args.q_blocks, args.q_tokens, warp, warps),
        work(loads) {
#pragma unroll
    for (int i = 0; i < kFusedTiles - 1; ++i) start();
  }
  __device__ __forceinline__ void start() {
    if (!loads.done()) {
      F::load(tiles + loaded++ % kFusedTiles * F::kTile, q, args.q,
              typename F::Rows(offsets, loads.at, loads.first), args.dk);
      loads.next();
    }
    ptx::copy_commit();
  }
  // The next tile, and another one on its way into that of the step before, which is written out.
  __device__ __forceinline__ bf16* take() {
    ptx::copy_wait<kFusedTiles - 2>();
    bf16* tile = tiles + step % kFusedTiles * F::kTile;
    F::map(tile, args.map, work.rows(), args.dk);
    __syncwarp();
    start();
    return tile;
  }
  __device__ __forceinline__ void next() {
    work.next();
    ++step;
  }
};

// shared_position: phi(q) z of every query with its own block. The warp that made a summary reads
// it here, before it is mixed; q is read once more for the read-out, by then from L2.
template <typename F>
__device__ __forceinline__ void fused_products(const FusedArgs& args, const PackedMap& map,
                                               int batch, int head, int warp, int warps,
                                               const int* offsets, bf16* tiles,
                                               const bf16* summaries, float* products) {
  const int lane = threadIdx.x;
  QueryRing<F> ring(args, batch, head, warp, warps, offsets, tiles);
  const TileWalk<F>& work = ring.work;
  for (; !work.done(); ring.next()) {
    const bf16* tile = ring.take();
    float acc[4] = {};
    F::multiply_sums(acc, map, tile, summaries + work.block * F::kSummary);
    if (lane % 4 == 0) {
      float* to = products + work.block * kFusedPositions + work.first + lane / 4;
      to[0] = acc[0];
      to[8] = acc[2];
    }
  }
  ptx::copy_wait<0>();
  __syncwarp();
}

// The row factors from the products of all blocks.
__device__ __forceinline__ void fused_factors(const FusedArgs& args, const float* products,
                                              float* factors) {
  const int thread = static_cast<int>(threadIdx.y * 32 + threadIdx.x);
  const int threads = static_cast<int>(blockDim.y * 32);
  for (int n = thread; n < args.q_blocks * kFusedPositions; n += threads) {
    const float* m = args.mixing + n / kFusedPositions * args.mixing_row_stride;
    float sum = 0.f;
#pragma unroll 8
    for (int j = 0; j < args.k_blocks; ++j) {
      sum = fmaf(__ldg(m + j), products[j * kFusedPositions + n % kFusedPositions], sum);
    }
    const float total = args.scale * sum + args.eps;
    factors[n] = total == 0.f ? 0.f : args.scale / total;
  }
}

// o = phi(q) S~_i over phi(q) z~_i (Eq. 4), or times the given factors. `mix` runs while the first
// queries are on their way.
template <typename F, bool kProducts, typename Mix>
__device__ __forceinline__ void fused_readout(const FusedArgs& args, const PackedMap& map,
                                              int batch, int head, int warp, int warps,
                                              const int* offsets, bf16* tiles,
                                              const bf16* summaries, const float* factors,
                                              Mix&& mix) {
  const int lane = threadIdx.x;
  bf16* o = args.o.head<bf16>(batch, head);
  QueryRing<F> ring(args, batch, head, warp, warps, offsets, tiles);
  const TileWalk<F>& work = ring.work;
  mix();

  for (; !work.done(); ring.next()) {
    bf16* tile = ring.take();
    float factor[2] = {args.scale, args.scale};
    if constexpr (kProducts) {
      const float* from = factors + work.block * kFusedPositions + work.first + lane / 4;
      factor[0] = from[0];
      factor[1] = from[8];
    } else if (args.factor != nullptr) {
      const float* of_head = args.factor +
                             static_cast<std::int64_t>(batch * args.heads + head) * args.row_stride;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + half * 8, position = work.first + row;
        const int token = F::kIsRegular       ? work.at.first + offsets[position]
                          : row < work.rows() ? work.at.token(position)
                                              : work.at.first;
        factor[half] = __ldg(of_head + token);
      }
    }
    float acc[F::D / 8 + 1][4] = {};
    F::multiply(acc, map, tile, summaries + work.block * F::kSummary);
    if (!kProducts && args.normalize) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float den = __shfl_sync(0xffffffffu, acc[F::D / 8][2 * half], lane & ~3);
        const float total = args.scale * den + args.eps;
        factor[half] = total == 0.f ? 0.f : args.scale / total;
      }
    }
#pragma unroll
    for (int j = 0; j < F::D / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[j][e] *= factor[e / 2];
    __syncwarp();
    F::store_rows(tile, acc);
    __syncwarp();
    F::write(tile, o, args.o, typename F::Rows(offsets, work.at, work.first), args.dv);
  }
}

// A thread block takes every gridDim-th (batch entry, head); one warp per row of threads.
template <typename F, bool kProducts = false>
__global__ void __launch_bounds__(F::kThreads, 1)
    fused_forward(const __grid_constant__ FusedArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = threadIdx.y, warps = blockDim.y;
  bf16* summaries = reinterpret_cast<bf16*>(shared);
  bf16* all_tiles = summaries + F::MB * 16 * F::kSummary;
  bf16* tiles = all_tiles + warp * kFusedTiles * F::kTile;
  int* k_offsets = reinterpret_cast<int*>(all_tiles + warps * kFusedTiles * F::kTile);
  int* q_offsets = k_offsets + (F::kIsRegular ? args.k_tokens : 0);
  float* products = reinterpret_cast<float*>(q_offsets + args.q_tokens);
  float* factors = products + F::MB * 16 * kFusedPositions;

  if constexpr (F::kIsRegular) {
    for (int i = warp * 32 + threadIdx.x; i < args.k_tokens; i += warps * 32) {
      k_offsets[i] = args.k_table[0].token(i) - args.k_table[0].first;
    }
    for (int i = warp * 32 + threadIdx.x; i < args.q_tokens; i += warps * 32) {
      q_offsets[i] = args.q_table[0].token(i) - args.q_table[0].first;
    }
    __syncthreads();
  }
  const PackedMap map(args.map);
  for (int item = blockIdx.x; item < args.items; item += gridDim.x) {
    const int head = item % args.heads, batch = item / args.heads;
    fused_summaries<F>(args, map, batch, head, warp, warps, k_offsets, tiles, summaries);
    // Blocks that pad the last mma tile hold zeros; the mixture of the head before is gone.
    for (int i = args.k_blocks * F::kSummary + (warp * 32 + threadIdx.x) * 8;
         i < F::MB * 16 * F::kSummary; i += warps * 32 * 8) {
      *reinterpret_cast<Chunk*>(summaries + i) = Chunk{};
    }
    ptx::copy_wait<0>();
    __syncwarp();
    if constexpr (kProducts) {
      fused_products<F>(args, map, batch, head, warp, warps, q_offsets, tiles, summaries, products);
    }
    fused_readout<F, kProducts>(args, map, batch, head, warp, warps, q_offsets, tiles, summaries,
                                factors, [&] {
                                  __syncthreads();
                                  if constexpr (kProducts) fused_factors(args, products, factors);
                                  fused_mix<F>(args, head, warp, warps, summaries);
                                  __syncthreads();
                                });
  }
}

}  // namespace mhla::cuda::sm90
