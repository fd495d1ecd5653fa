// The third pass on Hopper: o = phi(q) S~ over the denominator (Eq. 4), a tile at a time.
#pragma once

#include "mhla/cuda/sm90/linear_tile.cuh"

namespace mhla::cuda::sm90 {

// Warpgroups take turns with the tiles; o leaves from where q was.
template <int D>
struct ReadoutMemory : TileMemory<D, 2, 1, 8, 2, 0> {
  using TileMemory<D, 2, 1, 8, 2, 0>::TileMemory;
  static constexpr int kThreadBlocks = D == 128 ? 1 : 2;
};

template <int D>
__global__ void __launch_bounds__(ReadoutMemory<D>::kThreads, ReadoutMemory<D>::kThreadBlocks)
    tile_readout(const __grid_constant__ TileArgs args) {
  using M = ReadoutMemory<D>;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  memory.start({.ready = 4, .slot_empty = 4 * M::kGroups});
  ptx::begin_after_previous();
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp == 4 * M::kGroups) return keep_loading<M, true, false>(args, memory);
  if (warp > 4 * M::kGroups) {
    if (threadIdx.x % 32 == 0) keep_storing<M, 1, false>(args, memory);
    return;
  }

  const Seat64 seat;
  const PackedMap map(args.map);
  const TileLayout& layout = args.layout;
  Turn stage, slot;
  int whose = 0;  // the group whose turn it is
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const std::uint32_t summary = memory.slot(slot.index);
    barrier_wait(memory.slot_full(slot.index), slot.parity);
#pragma unroll 1
    for (int t = 0; t < layout.tiles; ++t) {
      const int here = stage.index, parity = stage.parity;
      stage.advance(M::kStages);
      const bool mine = whose == seat.group;
      whose = whose + 1 == M::kGroups ? 0 : whose + 1;
      if (!mine) continue;
      barrier_wait(memory.full(here), parity);
      const std::uint32_t tile = memory.tile(here, 0);
      std::uint32_t a[D / 16][4];
#pragma unroll
      for (int s = 0; s < D / 16; ++s) {
        load_fragment<false>(a[s], seat.row_at(tile + s / 4 * M::kHalfTile, s % 4));
      }
      map.apply(a);
      float sum[D / 2];
      wgmma_fence();
      wgmma<bf16, D, true, false>(sum, a[0], inner_rows<M::kHalfSummary>(summary, 0));
#pragma unroll
      for (int s = 1; s < D / 16; ++s) {
        wgmma<bf16, D, true, true>(sum, a[s], inner_rows<M::kHalfSummary>(summary, s));
      }
      wgmma_commit();
      float factor[2] = {args.scale, args.scale};
      if (args.normalized) {  // all columns of this product are the denominator
        float den[4] = {};
        const std::uint32_t z = summary + M::kSummary + seat.lane % 4 * 4;
#pragma unroll
        for (int s = 0; s < D / 16; ++s) {
          ptx::mma_bf16(den, a[s], load_word(z + s * 32), load_word(z + s * 32 + 16));
        }
        factor[0] = row_factor(args, den[0]);
        factor[1] = row_factor(args, den[2]);
      }
      wgmma_wait<0>();
#pragma unroll
      for (int s = 0; s < D / 16; ++s) {
        const float* x = sum + 8 * s;
        store_fragment(seat.row_at(tile + s / 4 * M::kHalfTile, s % 4),
                       ptx::pack_bf16(x[0] * factor[0], x[1] * factor[0]),
                       ptx::pack_bf16(x[2] * factor[1], x[3] * factor[1]),
                       ptx::pack_bf16(x[4] * factor[0], x[5] * factor[0]),
                       ptx::pack_bf16(x[6] * factor[1], x[7] * factor[1]));
      }
      arrive_written(memory.ready(here));
    }
    // NOTE: a group without a tile in this block has waited for its summary, too: it must not
    // arrive twice before another arrives once.
    arrive_read(memory.slot_empty(slot.index));
    slot.advance(M::kSlots);
  }
}

}  // namespace mhla::cuda::sm90
