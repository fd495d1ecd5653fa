// Forward for up to 256 keys: o = (m * phi(q) phi(k)^T) v over the row sum, 64 queries at a time.
#pragma once

#include "mhla/cuda/sm90/dense_short_rows.cuh"
#include "mhla/cuda/sm90/dense_short_tables.cuh"
#include "mhla/cuda/sm90/dense_short_tile.cuh"

namespace mhla::cuda::sm90 {

// Given factors of this thread's two rows in a row tile; row: the first of the tile.
__device__ __forceinline__ void load_given(float (&given)[2], const ShortArgs& args,
                                           const ShortWork& work, int row) {
  if (args.factor == nullptr) return;
  const float* of_head = args.factor +
                         static_cast<std::int64_t>(work.batch * args.dense.heads + work.head) *
                             args.queries;
  row += threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) given[i] = __ldg(of_head + min(row + 8 * i, args.queries - 1));
}

// NOTE: what goes through the queue of shared memory is asked for before products are issued:
// behind them it would wait until they have started. kShared: row factors come from the warps that
// map the keys.
template <typename T, int D, bool kPairs, bool kShared>
__device__ __forceinline__ void compute_short(const ShortArgs& args,
                                              const ShortShared<D, kPairs, kShared>& shared) {
  constexpr bool kFit = std::is_same_v<T, f16>;
  const int warpgroup = warpgroup_index();
  const std::uint32_t ones = shared.base + shared.kPlan.ones;
  const std::uint32_t out = shared.base + shared.kPlan.o + warpgroup * kTile * D * 2;
  for (ShortWork work(args); !work.done(); work.next()) {
    const auto ka = shared.k(work.half), kb = shared.k(work.half + 1);
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    const auto factors = shared.factors(work.half / 2);
    const int tiles = work.tiles();
    int tile = (warpgroup ^ work.tile) & 1;  // row tiles alternate, across heads too
    if (tile >= tiles) {
      ka.wait_full();
      kb.wait_full();
      va.wait_full();
      vb.wait_full();
      release(ka.empty);
      release(kb.empty);
      release(va.empty);
      release(vb.empty);
      if constexpr (kShared) {
        factors.wait_full();
        release(factors.empty);
      }
      continue;
    }
    ShortRows<T, D, kPairs> rows;
    rows.load(args, shared, work.tile + tile, work.row() + tile * kTile);
    for (bool begun = false; tile < tiles; tile += 2, begun = true) {
      const bool last = tile + 2 >= tiles;

      // Scores of both halves
      const HalfWeights<kPairs> first(rows.weights, 0);
      float given[2] = {};
      if constexpr (!kShared) load_given(given, args, work, work.row() + tile * kTile);
      float a[kHalf / 2], b[kHalf / 2];
      if (!begun) ka.wait_full();
      wgmma_fence();
      issue_half_scores<T, D>(a, rows.q, ka.at);
      wgmma_commit();
      if (!begun) kb.wait_full();
      wgmma_fence();
      issue_half_scores<T, D>(b, rows.q, kb.at);
      wgmma_commit();
      if (!begun) {
        va.wait_full();
        vb.wait_full();
      }

      // First half: weights, rounding, outputs
      float fit[2] = {1.f, 1.f};
      std::uint32_t p[kHalf / 16][4], p2[kHalf / 16][4];
      wgmma_wait<kFit ? 0 : 1>();
      first.apply(a);
      const HalfWeights<kPairs> second(rows.weights, 1);
      if constexpr (kFit) {
        second.apply(b);
        fit_rows(a, b, fit);
      }
      round_half<T>(p, a);
      ShortOutputs<T, D> o;
      wgmma_fence();
      o.template issue<true>(p, va.at, ones);
      wgmma_commit();

      // Second half
      if constexpr (!kFit) {
        wgmma_wait<1>();
        second.apply(b);
      }
      if (last) {
        release(ka.empty);
        release(kb.empty);
      }
      round_half<T>(p2, b);
      wgmma_fence();
      o.template issue<false>(p2, vb.at, ones);
      wgmma_commit();
      if (!last) {
        rows.load(args, shared, work.tile + tile + 2, work.row() + (tile + 2) * kTile);
      }
      wgmma_wait<0>();
      if (last) {
        release(va.empty);
        release(vb.empty);
      }

      // Normalise and write
      float factor[2];
      if constexpr (kShared) {
        if (!begun) factors.wait_full();
        const int row = tile * kTile + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          factor[i] = load_float(factors.at + 4 * min(row + 8 * i, args.queries - 1));
          if constexpr (kFit) factor[i] /= fit[i];
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          factor[i] = args.factor == nullptr ? row_factor(args.dense, o.sum(i), fit[i])
                      : kFit                 ? given[i] / fit[i]
                                             : given[i];
        }
      }
      const int warp_row = static_cast<int>(threadIdx.x / 32 % 4 * 16);
      ShortResult<T, D>(o, factor).store(
          args, out, {0, work.row() + tile * kTile + warp_row, work.head, work.batch});
      // NOTE: the outputs are stored, so that the factors have been read.
      if (kShared && last) release(factors.empty);
    }
  }
  if (threadIdx.x % 32 == 0) store_wait_read();
}

template <typename T, int D, bool kPairs, bool kShared>
__global__ void __launch_bounds__(kShortThreads, 1)
    dense_short_kernel(const __grid_constant__ ShortArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = ShortShared<D, kPairs, kShared>;
  const Shared shared{ptx::shared_address(memory)};
  if (warpgroup_index() == 2) {
    const bool copies = threadIdx.x / 32 == 8;
    const std::conditional_t<kShared, ShortRowFactors<T, D, kPairs>, ShortKeys<T, D, kPairs>> keys{
        args, shared};
    if (threadIdx.x == 256) shared.init_barriers();
    __syncthreads();
    give_registers<kShared ? kShortSharedLoaderRegisters : kShortLoaderRegisters>();
    if (copies) {
      if (threadIdx.x % 32 == 0) ShortCopies<D, Shared>(args, shared).run();
    } else if (args.dense.feature == Feature::elu1) {
      keys.run([](std::uint32_t x) { return feature_pair<T, Feature::elu1>(x); });
    } else {
      keys.run(PairMap<T>(args.dense.feature));
    }
    return;
  }
  const ShortTables<T, D, kPairs> tables(args);
  __syncthreads();
  take_registers<kShared ? kShortSharedRegisters : kShortRegisters>();
  tables.write(shared);
  compute_short<T, D, kPairs, kShared>(args, shared);
}

}  // namespace mhla::cuda::sm90
