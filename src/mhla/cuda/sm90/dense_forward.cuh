// Forward: o = (m * phi(q) phi(k)^T) v, divided by the row sum; scores never leave the registers.
#pragma once

#include "mhla/cuda/sm90/dense_tile.cuh"

namespace mhla::cuda::sm90 {

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    dense_forward_kernel(const __grid_constant__ DenseArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Shared<D, false> shared(args, ptx::shared_address(memory));
  if (begin_roles(shared)) {
    give_registers<kLoaderRegisters>();
    Loader<T, D, false, true, false, 0>(args, shared.base).run(1);
    return;
  }
  take_registers<kComputeRegisters>();

  constexpr int kGroups = D / 8;
  const int warpgroup = warpgroup_index();
  const SlotPlan plan = slot_plan(D, args.row_blocks, true, false, 0);
  Ring row_ring;
  ColumnWalk walk(args);
  for (int item = blockIdx.x; item < args.items; item += gridDim.x) {
    const Work work(args, item);
    walk.begin_item();
    for (int pass = 0; pass < work.passes; ++pass) {
      walk.begin_sweep(pass + 1 == work.passes);
      const int first = (pass * kWarpgroups + warpgroup) * kTile;
      if (first >= work.group.rows) {
        skip_sweep(shared, walk, work.group.columns);
        continue;
      }

      // Queries of this tile
      const Rows rows(args, work.group.row_first + first, work.group.rows - first);
      Fragments<D> q;
      barrier_wait(shared.row_full(warpgroup, row_ring.index), row_ring.parity);
      q.load(shared.row_tile(warpgroup, row_ring.index));
      release(shared.row_empty(warpgroup, row_ring.index));
      row_ring.advance(shared.buffers);

      // NOTE: every product has finished where the loop turns; ptxas serialises them otherwise.
      float o[(D + 8) / 2] = {};  // the last group of 8 columns starts with the row sum
      float s[kTile / 2];
      barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
      wgmma_fence();
      issue_scores<T, D, kTile>(s, q, shared.slot(walk.ring.index));
      wgmma_commit();
      wgmma_wait<0>();
      for (int c = kTile;; c += kTile) {
        const int current = walk.ring.index;
        const std::uint32_t slot = shared.slot(current);
        walk.ring.advance(shared.slots);

        // Weights, rounding
        std::uint32_t p[kTile / 16][4];
        by_mask(args, [&]<bool kCausal>() {
#pragma unroll
          for (int g = 0; g < kTile / 8; ++g) {
            float m[4];
            load_weights<false, kCausal>(m, rows, slot + plan.weights, slot + plan.order, g);
            p[g / 2][g % 2 * 2] = pack_pair<T>(m[0] * s[4 * g], m[1] * s[4 * g + 1]);
            p[g / 2][g % 2 * 2 + 1] = pack_pair<T>(m[2] * s[4 * g + 2], m[3] * s[4 * g + 3]);
          }
        });

        // Output and row sum; scores of the next columns
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTile / 16; ++step) {
          wgmma<T, D + 8, true, true>(o, p[step], tokens_inner<kGroups + 1>(slot + plan.z, step));
        }
        wgmma_commit();
        const bool more = c < work.group.columns;
        if (more) {
          barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
          wgmma_fence();
          issue_scores<T, D, kTile>(s, q, shared.slot(walk.ring.index));
          wgmma_commit();
        }
        wgmma_wait<0>();
        if (walk.last) release(shared.column_empty(current));
        if (!more) break;
      }

      // Normalise and write
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = __shfl_sync(0xffffffffu, o[4 * kGroups + 2 * i], threadIdx.x % 32 & ~3);
        const float den = args.scale * sum + args.eps;
        factor[i] = !args.normalize ? args.scale : den == 0.f ? 0.f : args.scale / den;
      }
      std::uint32_t words[kGroups][2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        words[g][0] = pack_pair<T>(o[4 * g] * factor[0], o[4 * g + 1] * factor[0]);
        words[g][1] = pack_pair<T>(o[4 * g + 2] * factor[1], o[4 * g + 3] * factor[1]);
      }
      store_rows<T, D>(args.out_z, work.batch, work.head, rows, args.dv, words);
    }
  }
}

}  // namespace mhla::cuda::sm90
