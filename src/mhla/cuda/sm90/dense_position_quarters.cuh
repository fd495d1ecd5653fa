// The computing warps of the forward by positions in bf16 under shared_position: three warpgroups,
// or two beside one for the local term.
#pragma once

#include "mhla/cuda/sm90/dense_position_tile.cuh"

namespace mhla::cuda::sm90 {

// A quarter of the keys at a time: fewer registers than compute_positions, and more warps to wait
// for each other's products. Row tiles go round the warpgroups across heads.
template <PositionTeam kTeam>
__device__ __forceinline__ void compute_quarters(const PositionArgs& args,
                                                 const PositionShared<kTeam>& shared,
                                                 const PositionWeights& weights) {
  using T = bf16;
  constexpr int kTurns = kTeam.computing;  // row tiles go round so many warpgroups
  const int warpgroup = warpgroup_index(), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const std::uint32_t ones = shared.base + shared.kPlan.ones;
  const std::uint32_t out = shared.base + shared.kPlan.o + warpgroup * shared.kTileBytes;
  const int end = all_tiles(args);
  ShortQueries<T, 64> q;
  if (warpgroup < end) load_queries(q, args, shared.q(warpgroup));
  for (ShortWork work(args); !work.done(); work.next()) {
    const auto ka = shared.k(work.half), kb = shared.k(work.half + 1);
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    const int tiles = work.tiles(), begin = (warpgroup - work.tile % kTurns + kTurns) % kTurns;
    if (begin >= tiles) {
      for (const ShortBuffer& each : {ka, kb, va, vb}) {
        each.wait_full();
        release(each.empty);
      }
      continue;
    }
    for (int tile = begin; tile < tiles; tile += kTurns) {
      const bool begun = tile != begin, last = tile + kTurns >= tiles;
      const int number = work.tile + tile,
                position = work.row() / kPositionBlocks + tile * 4 + warp;
      OwnBlock own;
      PositionOutputs<T, false> o;
      const auto weigh = [&](float (&s)[32]) {
        own.add(s);
        own.after(weights, args.grid >> 30).apply(s);
      };
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
        if (kTeam.local && half == 0 && number >= kTurns) {
          if (threadIdx.x % 32 == 0) store_wait_read();  // the tile before has left
          release(shared.o(number - kTurns).empty);
        }
        wgmma_wait<1>();
        weigh(b);
        if (last) release(k.empty);
        round_quarter<T>(p2, b);
        wgmma_fence();
        o.template issue<false>(p2, v.at + shared.kTileBytes, ones);
        wgmma_commit();
        if (half == 0) wgmma_wait<1>();  // frees the registers of p
      }
      float factor[2];
      const float fit[2] = {1.f, 1.f};
      own.factors(factor, weights, args.dense.scale, args.dense.eps, fit);
      const int next = number + kTurns;  // in this head or another
      if (next < end) load_queries(q, args, shared.q(next));
      StagedLocal local;
      if constexpr (kTeam.local) {
        shared.o(number).wait_full();
        local.load(shared.o(number).at);
      }
      wgmma_wait<0>();
      if (last) {
        release(va.empty);
        release(vb.empty);
      }
      const PositionStart start(args, 3, work, position);
      if constexpr (kTeam.local) {
        o.scale(factor, local);
        o.store(args.maps[3][0], shared.o(number).at, start);
      } else {
        o.scale(factor);
        o.store(args.maps[3][0], out, start);
      }
    }
  }
  if (threadIdx.x % 32 == 0) store_wait_read();
}

}  // namespace mhla::cuda::sm90
