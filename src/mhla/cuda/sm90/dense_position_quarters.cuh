// The computing warps of the forward by positions where there are three warpgroups of them: bf16
// under shared_position.
#pragma once

#include "mhla/cuda/sm90/dense_position_tile.cuh"

namespace mhla::cuda::sm90 {

// A quarter of the keys at a time: fewer registers than compute_positions, and more warps to wait
// for each other's products. Row tiles go round the warpgroups across heads.
template <bool kLocal>
__device__ __forceinline__ void compute_quarters(const PositionArgs& args,
                                                 const PositionShared<3>& shared,
                                                 const PositionWeights& weights) {
  using T = bf16;
  const int warpgroup = warpgroup_index(), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const std::uint32_t ones = shared.base + shared.kPlan.ones;
  const std::uint32_t out = shared.base + shared.kPlan.o + warpgroup * shared.kTileBytes;
  const int end = all_tiles(args);
  ShortQueries<T, 64> q;
  if (warpgroup < end) load_queries(q, args, shared.q(warpgroup));
  for (ShortWork work(args); !work.done(); work.next()) {
    const auto ka = shared.k(work.half), kb = shared.k(work.half + 1);
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    const auto taps = shared.taps(work.half / 2);
    const int tiles = work.tiles(), begin = (warpgroup - work.tile % 3 + 3) % 3;
    if (begin >= tiles) {
      for (const ShortBuffer& each : {ka, kb, va, vb}) {
        each.wait_full();
        release(each.empty);
      }
      if constexpr (kLocal) {
        taps.wait_full();
        release(taps.empty);
      }
      continue;
    }
    for (int tile = begin; tile < tiles; tile += 3) {
      const bool begun = tile != begin, last = tile + 3 >= tiles;
      const int position = work.row() / kPositionBlocks + tile * 4 + warp;
      const TapRows rows = kLocal ? TapRows(shared, va.at, position) : TapRows();
      OwnBlock own;
      PositionOutputs<T, false> o;
      const auto weigh = [&](float (&s)[32]) {
        own.add(s);
        own.after(weights, args.grid >> 30).apply(s);
      };
      TapPair<T> pair;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const ShortBuffer& k = half == 0 ? ka : kb;
        const ShortBuffer& v = half == 0 ? va : vb;
        float a[32], b[32];
        std::uint32_t p[4][4], p2[4][4];
        if (!begun) k.wait_full();
        wgmma_fence();
        issue_quarter_scores<T>(a, q, k.at);
        wgmma_commit();
        issue_quarter_scores<T>(b, q, k.at + shared.kTileBytes);
        wgmma_commit();
        if (!begun) v.wait_full();
        wgmma_wait<1>();
        weigh(a);
        round_quarter<T>(p, a);
        wgmma_fence();
        if (half == 0) {
          o.template issue<true>(p, v.at, ones);
        } else {
          o.template issue<false>(p, v.at, ones);
        }
        wgmma_commit();
        wgmma_wait<1>();
        weigh(b);
        if (last) release(k.empty);
        round_quarter<T>(p2, b);
        if (kLocal && half == 1) {
          if (!begun) taps.wait_full();
          pair.load(rows.at[0], taps.at, 0);
        }
        wgmma_fence();
        o.template issue<false>(p2, v.at + shared.kTileBytes, ones);
        wgmma_commit();
        if (half == 0) wgmma_wait<1>();  // frees the registers of p
      }
      float factor[2];
      const float fit[2] = {1.f, 1.f};
      own.factors(factor, weights, args.dense.scale, args.dense.eps, fit);
      const int next = work.tile + tile + 3;  // in this head or another
      if (next < end) load_queries(q, args, shared.q(next));
      wgmma_wait<0>();
      if (!kLocal && last) {
        release(va.empty);
        release(vb.empty);
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

}  // namespace mhla::cuda::sm90
