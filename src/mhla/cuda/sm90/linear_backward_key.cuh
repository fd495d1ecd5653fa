// The backward over keys on Hopper: d_v = phi(k) dS, d_k = (v dS^T + dz) phi'(k), a tile at a time.
#pragma once

#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {

// Warpgroups take turns with the tiles; gradients leave from where k and v were.
template <int W, int kHeads>
struct BackwardKeyMemory : TileMemory<W, kHeads, W == 128 ? 2 : 3, 2, W == 128 ? 4 : 10,
                                      W == 128      ? 2
                                      : kHeads == 1 ? 4
                                                    : 8,
                                      0, 128> {
  using Base = TileMemory<W, kHeads, W == 128 ? 2 : 3, 2, W == 128 ? 4 : 10,
                          W == 128      ? 2
                          : kHeads == 1 ? 4
                                        : 8,
                          0, 128>;
  using Base::Base;
  static constexpr int kThreadBlocks = 1;
  static constexpr int kRegisters = W == 128 ? 232 : 152, kMoverRegisters = W == 128 ? 40 : 56;
};

// kGiven: dz of a block is its own, apart from the mixed dS.
template <int W, int kHeads, bool kGiven>
__global__ void __launch_bounds__(BackwardKeyMemory<W, kHeads>::kThreads,
                                  BackwardKeyMemory<W, kHeads>::kThreadBlocks)
    tile_backward_kv(const __grid_constant__ TileArgs args) {
  using M = BackwardKeyMemory<W, kHeads>;
  constexpr int kSteps = W / 16, kHeadSteps = kSteps / kHeads;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  memory.start(args, {.ready = M::kGroupArrivals, .slot_empty = M::kArrivals});
  const int mover = static_cast<int>(threadIdx.x) - M::kGroups * 128;
  if (mover >= 0) {
    give_registers<M::kMoverRegisters>();
    if (mover < 32) return keep_loading<M, false>(args, memory);
    ptx::begin_after_previous();
    if (mover == 32) keep_storing<M, 2, false>(args, memory);
    if (mover == 64) keep_loading_summaries(args, memory);
    return;
  }
  ptx::begin_after_previous();
  take_registers<M::kRegisters>();

  const Seat64 seat;
  const PackedMap map(args.map);
  Turn stage, slot;
  int whose = 0;  // the group whose turn it is
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TileShape shape = shape_of<M>(args, task);
    const std::uint32_t summary = memory.slot(slot.index);
    barrier_wait(memory.slot_full(slot.index), slot.parity);
#pragma unroll 1
    for (int t = 0; t < shape.tiles; ++t) {
      const int here = stage.index, parity = stage.parity;
      stage.advance(M::kStages);
      const bool mine = whose == seat.group;
      whose = whose + 1 == M::kGroups ? 0 : whose + 1;
      if (!mine) continue;
      barrier_wait(memory.full(here), parity);
      const std::uint32_t k_tile = memory.tile(here, 0), v_tile = memory.tile(here, 1);
      const auto at = [&](std::uint32_t tile, int s) {
        return seat.row_at(tile + s / 4 * M::kHalfTile, s % 4);
      };
      std::uint32_t k[kSteps][4], v[kSteps][4];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) load_fragment<false>(k[s], at(k_tile, s));
#pragma unroll
      for (int s = 0; s < kSteps; ++s) load_fragment<false>(v[s], at(v_tile, s));
      map.apply(k);
      float d_v[kHeads][M::D / 2], d_k[kHeads][M::D / 2];
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        wgmma<bf16, M::D, true, false>(d_v[h], k[h * kHeadSteps], M::summary_rows(summary, h, 0));
#pragma unroll
        for (int s = 1; s < kHeadSteps; ++s) {
          wgmma<bf16, M::D, true, true>(d_v[h], k[h * kHeadSteps + s],
                                        M::summary_rows(summary, h, s));
        }
      }
      wgmma_commit();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        wgmma<bf16, M::D, false, false>(d_k[h], v[h * kHeadSteps],
                                        M::summary_columns(summary, h, 0));
#pragma unroll
        for (int s = 1; s < kHeadSteps; ++s) {
          wgmma<bf16, M::D, false, true>(d_k[h], v[h * kHeadSteps + s],
                                         M::summary_columns(summary, h, s));
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const float* x = d_v[s / kHeadSteps] + 8 * (s % kHeadSteps);
        store_fragment(at(v_tile, s), ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]),
                       ptx::pack_bf16(x[4], x[5]), ptx::pack_bf16(x[6], x[7]));
      }
      wgmma_wait<0>();
      std::uint32_t words[kSteps * 4], dz[W / 8];
#pragma unroll
      for (int j = 0; j < W / 8; ++j) {
        constexpr int kHeadWords = M::D / 8;
        dz[j] = 0u;
        if (kGiven || args.normalized) {
          dz[j] = key_pair<M, kGiven>(summary, j / kHeadWords, j % kHeadWords);
        }
      }
      map.slopes<kSteps>(words, k, [&](int w, int i) {
        return d_k[w / (4 * kHeadSteps)][2 * (w % (4 * kHeadSteps)) + i] +
               __uint_as_float(i == 0 ? dz[w / 2] << 16 : dz[w / 2] & 0xffff0000u);
      });
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        store_fragment(at(k_tile, s), words[4 * s], words[4 * s + 1], words[4 * s + 2],
                       words[4 * s + 3]);
      }
      arrive_written(memory.ready(here));
    }
    arrive_read(memory.slot_empty(slot.index));
    slot.advance(M::kSlots);
  }
}

}  // namespace mhla::cuda::sm90
