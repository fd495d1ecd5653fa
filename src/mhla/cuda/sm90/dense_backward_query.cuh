// Backward by queries: the row factors from one sweep over the keys, then
// d_q = ((dP - mean) * m) phi(k) * scale * phi'(q) from a second one, with dP = d_o v^T.
//
// <d_o, o> is the mean of dP under the row's weights, so o itself is not read.
#pragma once

#include "mhla/cuda/sm90/dense_tile.cuh"

namespace mhla::cuda::sm90 {

__device__ __forceinline__ float sum_of_quad(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <typename T, int D>
__global__ void __launch_bounds__(dense_threads(compute_warpgroups(DenseKernel::d_query, D)), 1)
    dense_backward_query_kernel(const __grid_constant__ DenseArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kWarpgroups = compute_warpgroups(DenseKernel::d_query, D);
  const Shared<D, true, kWarpgroups> shared(args, ptx::shared_address(memory));
  if (begin_roles<false, 0>(shared)) {
    give_registers<loader_registers(DenseKernel::d_query, D)>();
    Loader<T, D, kWarpgroups, true, false, false, 0>(args, shared.base).run(args.normalize ? 2 : 1);
    return;
  }
  take_registers<compute_registers(DenseKernel::d_query, D)>();

  constexpr int kGroups = D / 8;
  const int warpgroup = warpgroup_index();
  constexpr SlotPlan plan = slot_plan(D, false, false);
  const TablePlan tables = table_plan(args.row_blocks, false, 0);
  const Slope<T> slope(args.feature);
  DenseGroup group = args.groups[0];
  Ring row_ring;
  ColumnWalk walk(args);
  Turns<kWarpgroups, true> turns;
  RowIds ids;
  bool asked = false;
  for (int item = blockIdx.x; item < args.items; item += gridDim.x) {
    const Work work(args, group, item);
    walk.begin_item();
    const int my_first = turns.tile_of(warpgroup);
    if (my_first >= work.tiles) {
      for (int sweep = args.normalize ? 0 : 1; sweep < 2; ++sweep) {
        walk.begin_sweep(sweep == 1);
        skip_sweep(shared, walk, work.group.columns);
      }
      asked = false;
    }
    for (int tile = my_first; tile < work.tiles; tile += kWarpgroups) {
      const bool last_tile = tile + kWarpgroups >= work.tiles;
      const int first = tile * kTile;

      // Queries and output gradients of this tile
      if (!asked) ids.load(args, work.group.row_first + first, work.group.rows - first);
      const Rows rows(ids, work.group.row_first + first, work.group.rows - first);
      Fragments<D> q, d_o;
      barrier_wait(shared.row_full(warpgroup, row_ring.index), row_ring.parity);
      q.load(shared.row_tile(warpgroup, row_ring.index));
      d_o.load(shared.row_tile(warpgroup, row_ring.index) + kTile * D * 2);
      release_after(q, d_o, shared.row_empty(warpgroup, row_ring.index), args.items);
      row_ring.advance(shared.buffers);
      load_next(ids, args, work, item, tile, warpgroup, turns);
      asked = true;

      // First sweep: denominator and mean
      float scale[2] = {args.scale, args.scale}, mean[2] = {};
      if (args.normalize) {
        walk.begin_sweep(false);
        float den[2] = {}, sum[2] = {};
        for (int c = 0; c < work.group.columns; c += kTile) {
          const std::uint32_t slot = shared.slot(walk.ring.index);
          const std::uint32_t table = shared.table(c / kTile, walk.ring.index);
          barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
          float s[kTile / 2], dp[kTile / 2];
          wgmma_fence();
          issue_scores<T, D, kTile>(s, q, slot);
          issue_scores<T, D, kTile>(dp, d_o, slot + plan.z);
          wgmma_commit();
          wgmma_wait<0>();
          by_mask(args, [&]<bool kCausal>() {
            float m[2][4];
#pragma unroll
            for (int g = 0; g < kTile / 8; ++g) {
              if (g % 2 == 0) load_weights<false, kCausal>(m, rows, table, table + tables.order, g);
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const float a = m[g % 2][i] * s[4 * g + i];
                den[i / 2] += a;
                sum[i / 2] += a * dp[4 * g + i];
              }
            }
          });
          if (walk.last) release(shared.column_empty(walk.ring.index));
          walk.ring.advance(shared.slots);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float d = args.scale * sum_of_quad(den[i]) + args.eps;
          scale[i] = d == 0.f ? 0.f : args.scale / d;
          mean[i] = sum_of_quad(sum[i]) * scale[i];
        }
      }
      RowFactor* factors = args.factors + work.pair * args.factor_stride;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (threadIdx.x % 4 == 0 && rows.valid[i]) factors[rows.token[i]] = {scale[i], mean[i]};
      }

      // Second sweep: d_q
      walk.begin_sweep(last_tile);
      float dq[D / 2] = {};
      float dp[kTile / 2];
      barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
      wgmma_fence();
      issue_scores<T, D, kTile>(dp, d_o, shared.slot(walk.ring.index) + plan.z);
      wgmma_commit();
      wgmma_wait<0>();
      const auto weigh = [&](int tile_index) {
        const std::uint32_t table = shared.table(tile_index, walk.ring.index);
        by_mask(args, [&]<bool kCausal>() {
          float m[2][4];
#pragma unroll
          for (int g = 0; g < kTile / 8; ++g) {
            if (g % 2 == 0) load_weights<false, kCausal>(m, rows, table, table + tables.order, g);
#pragma unroll
            for (int i = 0; i < 4; ++i) dp[4 * g + i] = (dp[4 * g + i] - mean[i / 2]) * m[g % 2][i];
          }
        });
      };
      std::uint32_t ds[kTile / 16][4];
      const auto round = [&] {
#pragma unroll
        for (int i = 0; i < kTile / 4; ++i)
          ds[i / 4][i % 4] = pack_pair<T>(dp[2 * i], dp[2 * i + 1]);
      };
      const auto issue_gradient = [&](int slot_index) {
#pragma unroll
        for (int step = 0; step < kTile / 16; ++step) {
          wgmma<T, D, true, true>(dq, ds[step],
                                  tokens_inner<kGroups>(shared.slot(slot_index), step));
        }
        wgmma_commit();
      };
      weigh(0);
      round();
      for (int c = kTile; c < work.group.columns; c += kTile) {
        const int current = walk.ring.index;
        walk.ring.advance(shared.slots);
        barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
        wgmma_fence();
        issue_scores<T, D, kTile>(dp, d_o, shared.slot(walk.ring.index) + plan.z);
        wgmma_commit();
        issue_gradient(current);
        wgmma_wait<1>();
        weigh(c / kTile);
        wgmma_wait<0>();
        if (walk.last) release(shared.column_empty(current));
        round();
      }
      wgmma_fence();
      issue_gradient(walk.ring.index);
      wgmma_wait<0>();
      if (walk.last) release(shared.column_empty(walk.ring.index));
      walk.ring.advance(shared.slots);

      // Feature map, write
      std::uint32_t words[kGroups][2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 phi = unpack_pair<T>(q.pair(g, i));
          words[g][i] = pack_pair<T>(dq[4 * g + 2 * i] * scale[i] * slope(phi.x),
                                     dq[4 * g + 2 * i + 1] * scale[i] * slope(phi.y));
        }
      }
      store_rows<T, D>(args.out_x, work.batch, work.head, rows, args.dk, words);
    }
    turns.next_item(work.tiles);
  }
}

}  // namespace mhla::cuda::sm90
