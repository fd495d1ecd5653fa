// Forward by positions: o = (m * phi(q) phi(k)^T) v over its denominator, plus a local term.
#pragma once

#include "mhla/cuda/sm90/dense_position_local_warps.cuh"
#include "mhla/cuda/sm90/dense_position_quarters.cuh"
#include "mhla/cuda/sm90/dense_position_tile.cuh"

namespace mhla::cuda::sm90 {

// Row tiles of a head alternate between the two warpgroups; there are two or four.
template <typename T, bool kShared, bool kLocal, typename Shared>
__device__ __forceinline__ void compute_positions(const PositionArgs& args, const Shared& shared,
                                                  const PositionWeights& weights) {
  constexpr bool kFit = std::is_same_v<T, f16>;
  const int warpgroup = warpgroup_index(), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const std::uint32_t ones = shared.base + shared.kPlan.ones;
  const std::uint32_t out = shared.base + shared.kPlan.o + warpgroup * shared.kTileBytes;
  const int end = all_tiles(args);
  ShortQueries<T, 64> q;
  load_queries(q, args, shared.q(warpgroup));
  for (ShortWork work(args); !work.done(); work.next()) {
    const auto ka = shared.k(work.half), kb = shared.k(work.half + 1);
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    const auto taps = shared.taps(work.half / 2);
    for (int tile = warpgroup; tile < work.tiles(); tile += 2) {
      const bool begun = tile >= 2, last = tile + 2 >= work.tiles();
      const int position = work.row() / kPositionBlocks + tile * 4 + warp;

      // Scores of both halves. NOTE: the four slots of v are two pairs of neighbours.
      const TapRows rows = kLocal ? TapRows(shared, va.at, position) : TapRows();
      float a[kHalf / 2], b[kHalf / 2];
      if (!begun) ka.wait_full();
      wgmma_fence();
      issue_half_scores<T, 64>(a, q, ka.at);
      wgmma_commit();
      if (!begun) kb.wait_full();
      wgmma_fence();
      issue_half_scores<T, 64>(b, q, kb.at);
      wgmma_commit();
      if (!begun) {
        va.wait_full();
        vb.wait_full();
        if constexpr (kLocal) taps.wait_full();
      }

      // First half: weights, rounding, outputs
      float fit[2] = {1.f, 1.f};
      OwnBlock own;
      std::uint32_t p[kHalf / 16][4], p2[kHalf / 16][4];
      wgmma_wait<kFit ? 0 : 1>();
      const auto weigh = [&](float (&s)[kHalf / 2]) {
        if constexpr (!kShared) return weights.apply(s);
        own.add(s);
        own.after(weights, args.grid >> 30).apply(s);
      };
      weigh(a);
      if constexpr (kFit) {
        weigh(b);
        fit_rows(a, b, fit);
      }
      round_half<T>(p, a);
      PositionOutputs<T, !kShared> o;
      wgmma_fence();
      o.template issue<true>(p, va.at, ones);
      wgmma_commit();

      // Second half
      if constexpr (!kFit) {
        wgmma_wait<1>();
        weigh(b);
      }
      if (last) {
        release(ka.empty);
        release(kb.empty);
      }
      round_half<T>(p2, b);
      TapPair<T> pair;
      if constexpr (kLocal) pair.load(rows.at[0], taps.at, 0);
      wgmma_fence();
      o.template issue<false>(p2, vb.at, ones);
      wgmma_commit();
      float factor[2];
      if constexpr (kShared) {
        own.factors(factor, weights, args.dense.scale, args.dense.eps, fit);
      }
      const int next = work.tile + tile + 2;  // in this head or the next
      if (next < end) load_queries(q, args, shared.q(next));
      wgmma_wait<0>();
      if (!kLocal && last) {
        release(va.empty);
        release(vb.empty);
      }

      // Normalise, add and write
      if constexpr (!kShared) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          factor[i] = row_factor(args.dense, o.at[32 + 2 * i], fit[i]);
        }
      }
      o.scale(factor);
      if constexpr (kLocal) add_local<T>(o.at, pair, rows, taps.at);
      o.store(args.maps[3][0], out, PositionStart(args, 3, work, position));
      // NOTE: the outputs are stored, so that values and taps have been read.
      if (kLocal && last) {
        release(va.empty);
        release(vb.empty);
        release(taps.empty);
      }
    }
  }
  if (threadIdx.x % 32 == 0) store_wait_read();
}

template <typename T, bool kShared, bool kLocal>
__global__ void __launch_bounds__(
    128 * (position_team(std::is_same_v<T, bf16>, kShared, kLocal).all() + 1), 1)
    dense_position_kernel(const __grid_constant__ PositionArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr PositionTeam kTeam = position_team(std::is_same_v<T, bf16>, kShared, kLocal);
  constexpr int kThreads = 128 * kTeam.computing, kLoader = 128 * kTeam.all();
  using Shared = PositionShared<kTeam>;
  const Shared shared{ptx::shared_address(memory)};
  const int thread = static_cast<int>(threadIdx.x);
  if (warpgroup_index() == kTeam.all()) {
    if (thread == kLoader) shared.init_barriers();
    __syncthreads();
    give_registers<kTeam.loader_registers()>();
    const int mapping = thread - kLoader - 32;
    constexpr bool kBringTaps = kLocal && !kTeam.local;
    if (mapping < 0) {
      if (thread == kLoader) PositionCopies<Shared>(args, shared).run();
    } else if (args.dense.feature == Feature::elu1) {
      prepare_positions<kBringTaps>(
          args, shared, mapping, [](std::uint32_t x) { return feature_pair<T, Feature::elu1>(x); });
    } else {
      prepare_positions<kBringTaps>(args, shared, mapping, PairMap<T>(args.dense.feature));
    }
    return;
  }
  if constexpr (kTeam.local) {
    if (warpgroup_index() == kTeam.computing) {
      if (thread < kThreads + 32) {
        store_float(shared.base + Shared::kPlan.zeros + 4 * (thread - kThreads), 0.f);
      }
      __syncthreads();
      take_registers<kTeam.registers()>();
      return compute_local(args, shared);
    }
  }
  const PositionWeights weights = PositionWeights::of<T>(args);
  __syncthreads();
  take_registers<kTeam.registers()>();
  if constexpr (kTeam.quarters()) {
    compute_quarters<kTeam>(args, shared, weights);
  } else {
    const std::uint32_t one = std::is_same_v<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
    for (int i = 4 * thread; i < 2048 + 128; i += 4 * kThreads) {
      store_float(shared.base + Shared::kPlan.ones + i, __uint_as_float(i < 2048 ? one : 0u));
    }
    if constexpr (kLocal) write_tap_rows<kTeam>(args, shared.base);
    fence_async();
    ptx::sync_warps(1, kThreads);
    compute_positions<T, kShared, kLocal>(args, shared, weights);
  }
}

}  // namespace mhla::cuda::sm90
