// The whole forward of one head in one thread block: block summaries are made, mixed and read
// without leaving shared memory, so q, k, v are read once, o is written once, and nothing else
// crosses the memory bus. Warps work alone: two barriers per head. See docs/kernels/fused.md.
#pragma once

#include "mhla/cuda/device/tile.cuh"
#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/sm90/fused_args.h"

namespace mhla::cuda::sm90 {

// D: padded head width. MB: 16-row tiles of the mixing matrix, both ways.
template <int D_, int MB_>
struct Fused {
  static constexpr int D = D_, MB = MB_;
  using Tile = RowTile<bf16, kFusedRows, D, 32>;  // [16][D + pad], of one warp
  static constexpr int kLd = Tile::kLd;
  static constexpr int kSummary = fused_summary_elements(D);
  static constexpr int kEntries = D * kLd;  // of a summary, row padding included
  static constexpr int kThreads = fused_max_warps(D) * 32;
  static_assert(kLd == D + kFusedPad);
};

// phi of a row tile; rows and columns that do not exist become zero, not eps.
template <typename Tile, typename F>
__device__ __forceinline__ void map_rows(bf16* tile, const Map& map, int rows, int cols, F&& seen) {
  Tile::transform(tile, [&](int row, int col, float (&x)[kChunk<bf16>]) {
#pragma unroll
    for (int i = 0; i < kChunk<bf16>; ++i) {
      x[i] = row < rows && col + i < cols ? feature(map, x[i]) : 0.f;
    }
    seen(x);
    return true;
  });
}

// S_b = sum of phi(k) v^T, and z_b = sum of phi(k) as column D of S_b (Eq. 3). A warp takes every
// warps-th block.
template <typename F>
__device__ __forceinline__ void fused_summaries(const FusedArgs& args, int batch, int head,
                                                int warp, int warps, bf16* tiles, bf16* summaries) {
  using Tile = typename F::Tile;
  const int lane = threadIdx.x;
  const bf16* k = args.k.head<const bf16>(batch, head);
  const bf16* v = args.v.head<const bf16>(batch, head);

  int load_block = warp, load_row = 0, loaded = 0;
  DeviceBlock load_at = load_block < args.k_blocks ? args.k_table[load_block] : DeviceBlock{};
  const auto start = [&] {
    if (load_block < args.k_blocks) {
      bf16* tile = tiles + loaded++ % 2 * 2 * Tile::kElements;
      Tile::load(tile, k, args.k, load_at, load_row, args.dk);
      Tile::load(tile + Tile::kElements, v, args.v, load_at, load_row, args.dv);
      load_row += kFusedRows;
      if (load_row >= load_at.count) {
        load_row = 0;
        load_block += warps;
        if (load_block < args.k_blocks) load_at = args.k_table[load_block];
      }
    }
    ptx::copy_commit();
  };
  start();

  int step = 0;
  for (int block = warp; block < args.k_blocks; block += warps) {
    const int count = args.k_table[block].count;
    Accumulator<F::D / 16, F::D / 8> acc;
    clear(acc);
    float sums[kChunk<bf16>] = {};
    for (int first = 0; first < count; first += kFusedRows, ++step) {
      start();
      ptx::copy_wait<1>();
      bf16* k_tile = tiles + step % 2 * 2 * Tile::kElements;
      map_rows<Tile>(k_tile, args.map, count - first, args.dk, [&](float (&x)[kChunk<bf16>]) {
#pragma unroll
        for (int i = 0; i < kChunk<bf16>; ++i) {
          sums[i] += to_float(from_float<bf16>(x[i]));
        }
      });
      __syncwarp();
      mma_AtB(acc, k_tile, F::kLd, k_tile + Tile::kElements, F::kLd, kFusedRows);
      __syncwarp();
    }

    bf16* summary = summaries + block * F::kSummary;
    for_each_pair(acc, [&](int row, int col, float x, float y) {
      store_pair(summary + row * F::kLd + col, x, y);
    });
    // Lanes that share a column of k hold parts of its sum.
#pragma unroll
    for (int i = 0; i < kChunk<bf16>; ++i) {
#pragma unroll
      for (int offset = Tile::kPerRow; offset < 32; offset *= 2) {
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], offset);
      }
      if (lane < Tile::kPerRow) {
        summary[(lane * kChunk<bf16> + i) * F::kLd + F::D] = from_float<bf16>(sums[i]);
      }
    }
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

  for (int entry = warp * 8; entry < F::kEntries; entry += warps * 8) {
    std::uint32_t s[F::MB][2];
#pragma unroll
    for (int b = 0; b < F::MB; ++b) {
      ptx::load_matrix_transposed_2(s[b], summaries + (b * 16 + lane % 16) * F::kSummary + entry);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < F::MB; ++i) {
      float c[4] = {};
#pragma unroll
      for (int b = 0; b < F::MB; ++b) ptx::mma_bf16(c, m[i][b], s[b][0], s[b][1]);
      store_pair(summaries + (i * 16 + g) * F::kSummary + entry + t * 2, c[0], c[1]);
      store_pair(summaries + (i * 16 + g + 8) * F::kSummary + entry + t * 2, c[2], c[3]);
    }
  }
}

// o = phi(q) S~_i over phi(q) z~_i (Eq. 4). `mix` runs while the first queries are on their way.
template <typename F, typename Mix>
__device__ __forceinline__ void fused_readout(const FusedArgs& args, int batch, int head, int warp,
                                              int warps, bf16* tiles, const bf16* summaries,
                                              Mix&& mix) {
  using Tile = typename F::Tile;
  const int lane = threadIdx.x;
  const bf16* q = args.q.head<const bf16>(batch, head);
  bf16* o = args.o.head<bf16>(batch, head);
  const int slices = args.q_blocks * args.q_slices;

  // A slice is 16 rows of a block; in ragged layouts some do not exist.
  const auto rows_of = [&](const DeviceBlock& block, int slice) {
    return block.count - slice % args.q_slices * kFusedRows;
  };
  const auto following = [&](int slice) {
    do slice += warps;
    while (slice < slices && rows_of(args.q_table[slice / args.q_slices], slice) <= 0);
    return slice;
  };
  int load_slice = following(warp - warps), loaded = 0;
  const auto start = [&] {
    if (load_slice < slices) {
      Tile::load(tiles + loaded++ % kFusedTiles * Tile::kElements, q, args.q,
                 args.q_table[load_slice / args.q_slices], load_slice % args.q_slices * kFusedRows,
                 args.dk);
      load_slice = following(load_slice);
    }
    ptx::copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kFusedTiles - 1; ++i) start();
  mix();

  int step = 0;
  for (int slice = following(warp - warps); slice < slices; slice = following(slice), ++step) {
    ptx::copy_wait<kFusedTiles - 2>();
    const DeviceBlock block = args.q_table[slice / args.q_slices];
    bf16* tile = tiles + step % kFusedTiles * Tile::kElements;
    map_rows<Tile>(tile, args.map, rows_of(block, slice), args.dk, [](float (&)[kChunk<bf16>]) {});
    __syncwarp();
    start();  // into the tile of the step before, which is written out
    // The two tiles past D hold the denominator (column D) and nothing of use.
    Accumulator<1, F::D / 8 + 2> acc;
    clear(acc);
    mma_AB(acc, tile, F::kLd, summaries + slice / args.q_slices * F::kSummary, F::kLd, F::D);
    __syncwarp();
    float factor[2] = {args.scale, args.scale};
    if (args.normalize) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float den = __shfl_sync(0xffffffffu, acc[0][F::D / 8][2 * half], lane & ~3);
        const float total = args.scale * den + args.eps;
        factor[half] = total == 0.f ? 0.f : args.scale / total;
      }
    }
#pragma unroll
    for (int j = 0; j < F::D / 8; ++j) {
      const int col = j * 8 + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_pair(tile + (lane / 4 + 8 * half) * F::kLd + col, acc[0][j][2 * half] * factor[half],
                   acc[0][j][2 * half + 1] * factor[half]);
      }
    }
    __syncwarp();
    Tile::store(tile, o, args.o, block, slice % args.q_slices * kFusedRows, args.dv);
  }
}

// One thread block per (batch entry, head), one warp per row of threads.
template <typename F>
__global__ void __launch_bounds__(F::kThreads, 1)
    fused_forward(const __grid_constant__ FusedArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = threadIdx.y, warps = blockDim.y;
  bf16* summaries = reinterpret_cast<bf16*>(shared);
  bf16* tiles = summaries + F::MB * 16 * F::kSummary + warp * kFusedTiles * F::Tile::kElements;
  const int head = blockIdx.x % args.heads, batch = blockIdx.x / args.heads;

  // Blocks that pad the last mma tile hold zeros.
  for (int i = args.k_blocks * F::kSummary + (warp * 32 + threadIdx.x) * 8;
       i < F::MB * 16 * F::kSummary; i += warps * 32 * 8) {
    *reinterpret_cast<Chunk*>(summaries + i) = Chunk{};
  }
  fused_summaries<F>(args, batch, head, warp, warps, tiles, summaries);
  ptx::copy_wait<0>();
  __syncwarp();
  fused_readout<F>(args, batch, head, warp, warps, tiles, summaries, [&] {
    __syncthreads();
    fused_mix<F>(args, head, warp, warps, summaries);
    __syncthreads();
  });
}

}  // namespace mhla::cuda::sm90
