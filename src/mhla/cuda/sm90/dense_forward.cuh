// Forward: o = (m * phi(q) phi(k)^T) v, divided by the row sum; scores never leave the registers.
#pragma once

#include "mhla/cuda/sm90/dense_tile.cuh"

namespace mhla::cuda::sm90 {

inline constexpr float kLargestFit = 0x1p127f;

// Multiplies the scores of a tile and what was summed so far by the power of two that suits the
// largest score of each row up to here.
template <int D>
__device__ __forceinline__ void fit_scores(float (&s)[kTile / 2], float (&o)[(D + 8) / 2],
                                           float (&fit)[2]) {
  float largest[2] = {}, change[2];
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(s[i]));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float next = fminf(fit[i], fit_row(largest[i]));
    change[i] = next / fit[i];
    fit[i] = next;
  }
  // NOTE: without a branch, which would serialise the products.
#pragma unroll
  for (int i = 0; i < (D + 8) / 2; ++i) o[i] *= change[i / 2 % 2];
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) s[i] *= fit[i / 2 % 2];
}

template <typename T, int D>
__global__ void __launch_bounds__(dense_threads(compute_warpgroups(DenseKernel::forward, D)), 1)
    dense_forward_kernel(const __grid_constant__ DenseArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kWarpgroups = compute_warpgroups(DenseKernel::forward, D);
  const Shared<D, false, kWarpgroups> shared(args, ptx::shared_address(memory));
  if (begin_roles<false, 0>(shared)) {
    give_registers<loader_registers(DenseKernel::forward, D)>();
    Loader<T, D, kWarpgroups, false, true, false, 0>(args, shared.base).run(1);
    return;
  }
  take_registers<compute_registers(DenseKernel::forward, D)>();

  constexpr int kGroups = D / 8;
  const int warpgroup = warpgroup_index();
  constexpr SlotPlan plan = slot_plan(D, true, false);
  const TablePlan tables = table_plan(args.row_blocks, false, 0);
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
      walk.begin_sweep(true);
      skip_sweep(shared, walk, work.group.columns);
      asked = false;
    }
    for (int tile = my_first; tile < work.tiles; tile += kWarpgroups) {
      walk.begin_sweep(tile + kWarpgroups >= work.tiles);
      const int first = tile * kTile;

      // Queries of this tile
      if (!asked) ids.load(args, work.group.row_first + first, work.group.rows - first);
      const Rows rows(ids, work.group.row_first + first, work.group.rows - first);
      Fragments<D> q;
      barrier_wait(shared.row_full(warpgroup, row_ring.index), row_ring.parity);
      q.load(shared.row_tile(warpgroup, row_ring.index));
      load_next(ids, args, work, item, tile, warpgroup, turns);
      asked = true;

      // NOTE: every product has finished where the loop turns; ptxas serialises them otherwise.
      float o[(D + 8) / 2] = {};  // the last group of 8 columns starts with the row sum
      float s[kTile / 2];
      barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
      wgmma_fence();
      issue_scores<T, D, kTile>(s, q, shared.slot(walk.ring.index));
      wgmma_commit();
      // NOTE: an arrival may overtake ldmatrix; here its values have been used.
      release(shared.row_empty(warpgroup, row_ring.index));
      row_ring.advance(shared.buffers);
      wgmma_wait<0>();
      const auto weigh = [&](int tile_index) {
        const std::uint32_t table = shared.table(tile_index, walk.ring.index);
        by_mask(args, [&]<bool kCausal>() {
          float m[2][4];
#pragma unroll
          for (int g = 0; g < kTile / 8; ++g) {
            if (g % 2 == 0) load_weights<false, kCausal>(m, rows, table, table + tables.order, g);
#pragma unroll
            for (int i = 0; i < 4; ++i) s[4 * g + i] *= m[g % 2][i];
          }
        });
      };
      std::uint32_t p[kTile / 16][4];
      float fit[2] = {kLargestFit, kLargestFit};
      const auto round = [&] {
        if constexpr (std::is_same_v<T, f16>) fit_scores<D>(s, o, fit);
#pragma unroll
        for (int i = 0; i < kTile / 4; ++i) p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
      };
      weigh(0);
      round();
      for (int c = kTile; c < work.group.columns; c += kTile) {
        const int current = walk.ring.index;
        walk.ring.advance(shared.slots);

        // Scores of the next columns, then output and row sum of these
        barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
        wgmma_fence();
        issue_scores<T, D, kTile>(s, q, shared.slot(walk.ring.index));
        wgmma_commit();
#pragma unroll
        for (int step = 0; step < kTile / 16; ++step) {
          wgmma<T, D + 8, true, true>(
              o, p[step], tokens_inner<kGroups + 1>(shared.slot(current) + plan.z, step));
        }
        wgmma_commit();
        wgmma_wait<1>();
        weigh(c / kTile);
        wgmma_wait<0>();
        if (walk.last) release(shared.column_empty(current));
        round();
      }
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kTile / 16; ++step) {
        wgmma<T, D + 8, true, true>(
            o, p[step], tokens_inner<kGroups + 1>(shared.slot(walk.ring.index) + plan.z, step));
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (walk.last) release(shared.column_empty(walk.ring.index));
      walk.ring.advance(shared.slots);

      // Normalise and write
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = __shfl_sync(0xffffffffu, o[4 * kGroups + 2 * i], threadIdx.x % 32 & ~3);
        factor[i] = row_factor(args, sum, std::is_same_v<T, f16> ? fit[i] : 1.f);
      }
      std::uint32_t words[kGroups][2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        words[g][0] = pack_pair<T>(o[4 * g] * factor[0], o[4 * g + 1] * factor[0]);
        words[g][1] = pack_pair<T>(o[4 * g + 2] * factor[1], o[4 * g + 3] * factor[1]);
      }
      store_rows<T, D>(args.out_z, work.batch, work.head, rows, args.dv, words);
    }
    turns.next_item(work.tiles);
  }
}

}  // namespace mhla::cuda::sm90
