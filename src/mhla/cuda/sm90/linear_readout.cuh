// The third pass on Hopper: o = phi(q) S~ over the denominator (Eq. 4), a tile at a time.
#pragma once

#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {

// Warpgroups take turns with the tiles; o leaves from where q was.
template <int W, int kHeads>
struct ReadoutMemory : TileMemory<W, kHeads, 2, 1, 8,
                                  W == 128      ? 2
                                  : kHeads == 1 ? 4
                                                : 8,
                                  0, 128> {
  using Base = TileMemory<W, kHeads, 2, 1, 8, W == 128 ? 2 : kHeads == 1 ? 4 : 8, 0, 128>;
  using Base::Base;
  static constexpr int kThreadBlocks = W == 128 ? 1 : 2;
  static constexpr int kRegisters = W == 128 ? 224 : 96, kMoverRegisters = W == 128 ? 56 : 48;
};

template <int W, int kHeads>
__global__ void __launch_bounds__(ReadoutMemory<W, kHeads>::kThreads,
                                  ReadoutMemory<W, kHeads>::kThreadBlocks)
    tile_readout(const __grid_constant__ TileArgs args) {
  using M = ReadoutMemory<W, kHeads>;
  constexpr int kSteps = W / 16, kHeadSteps = kSteps / kHeads;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  memory.start(args, {.ready = M::kGroupArrivals, .slot_empty = M::kArrivals});
  const int mover = static_cast<int>(threadIdx.x) - M::kGroups * 128;
  if (mover >= 0) {
    give_registers<M::kMoverRegisters>();
    if (mover < 32) return keep_loading<M, false>(args, memory);
    ptx::begin_after_previous();
    if (mover == 32) keep_storing<M, 1, false>(args, memory);
    if (mover == 64) keep_loading_summaries(args, memory);
    return;
  }
  ptx::begin_after_previous();
  take_registers<M::kRegisters>();

  const Seat64 seat;
  const PackedMap map(args.map);
  const TileLayout& layout = args.layout;
  Turn stage, slot;
  int whose = 0;  // the group whose turn it is
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TileShape shape = shape_of<M>(args, task);
    const std::uint32_t summary = memory.slot(slot.index);
    const std::int64_t number = args.factors != nullptr ? place_of<M>(args, task).number : 0;
    barrier_wait(memory.slot_full(slot.index), slot.parity);
#pragma unroll 1
    for (int t = 0; t < shape.tiles; ++t) {
      const int here = stage.index, parity = stage.parity;
      stage.advance(M::kStages);
      const bool mine = whose == seat.group;
      whose = whose + 1 == M::kGroups ? 0 : whose + 1;
      if (!mine) continue;
      float factor[kHeads][2];
#pragma unroll
      for (int i = 0; i < 2 * kHeads; ++i) {
        factor[i / 2][i % 2] = args.scale;
        const int row = seat.warp * 16 + seat.lane / 4 + i % 2 * 8;
        if (args.factors != nullptr && row < rows_of(shape, t)) {
          const int slot_row = slot_of(layout, shape, t, row);
          factor[i / 2][i % 2] = __ldcg(args.factors +
                                        (number + i / 2 * layout.blocks) * args.slots + slot_row);
        }
      }
      barrier_wait(memory.full(here), parity);
      const std::uint32_t tile = memory.tile(here, 0);
      std::uint32_t a[kSteps][4];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        load_fragment<false>(a[s], seat.row_at(tile + s / 4 * M::kHalfTile, s % 4));
      }
      map.apply(a);
      float sum[kHeads][M::D / 2];
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        wgmma<bf16, M::D, true, false>(sum[h], a[h * kHeadSteps], M::summary_rows(summary, h, 0));
#pragma unroll
        for (int s = 1; s < kHeadSteps; ++s) {
          wgmma<bf16, M::D, true, true>(sum[h], a[h * kHeadSteps + s],
                                        M::summary_rows(summary, h, s));
        }
      }
      wgmma_commit();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (!args.normalized) continue;
        float den[4] = {};  // all columns of this product are the denominator
        const std::uint32_t z = M::key_sum(summary, h);
#pragma unroll
        for (int s = 0; s < kHeadSteps; ++s) {
          ptx::mma_bf16(den, a[h * kHeadSteps + s], load_word(z + s * 32),
                        load_word(z + s * 32 + 16));
        }
        factor[h][0] = row_factor(args, den[0]);
        factor[h][1] = row_factor(args, den[2]);
      }
      wgmma_wait<0>();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const float* x = sum[s / kHeadSteps] + 8 * (s % kHeadSteps);
        const float f0 = factor[s / kHeadSteps][0], f1 = factor[s / kHeadSteps][1];
        store_fragment(seat.row_at(tile + s / 4 * M::kHalfTile, s % 4),
                       ptx::pack_bf16(x[0] * f0, x[1] * f0), ptx::pack_bf16(x[2] * f1, x[3] * f1),
                       ptx::pack_bf16(x[4] * f0, x[5] * f0), ptx::pack_bf16(x[6] * f1, x[7] * f1));
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
