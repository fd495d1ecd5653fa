// The first pass on Hopper: S_b = phi(k)^T v and z_b (Eq. 3), a block at a time.
#pragma once

#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {

// A warpgroup makes 64 rows of a summary. It leaves from a slot, which nothing loads.
template <int W, int kHeads>
struct SummariesMemory
    : TileMemory<W, kHeads, W / 64, 2, W == 128 ? 5 : 6, kHeads == 1 ? 1 : 2, 6 * 128> {
  using Base = TileMemory<W, kHeads, W / 64, 2, W == 128 ? 5 : 6, kHeads == 1 ? 1 : 2, 6 * 128>;
  using Base::Base;
  static constexpr int kThreadBlocks = W == 128 ? 1 : 2;
};

template <int W, int kHeads>
__global__ void __launch_bounds__(SummariesMemory<W, kHeads>::kThreads,
                                  SummariesMemory<W, kHeads>::kThreadBlocks)
    tile_summaries(const __grid_constant__ TileArgs args) {
  using M = SummariesMemory<W, kHeads>;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  static_assert(32 * M::kStages <= M::kThreads);
  const bool same_rows = args.layout.one_slice != 0;  // of all tiles are tokens
  if (same_rows && threadIdx.x < 32 * M::kStages) {
    const int row = static_cast<int>(threadIdx.x) % 32 * 2, rows = args.layout.shapes[0].slice_rows;
    store_word(memory.scratch() + threadIdx.x * 4,
               (row < rows ? 0x3f80u : 0u) | (row + 1 < rows ? 0x3f800000u : 0u));
  }
  memory.start(args,
               {.full = same_rows ? 1 : 32, .empty = M::kArrivals, .slot_ready = M::kArrivals});
  begin_call();
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp == 4 * M::kGroups) return keep_loading<M, true>(args, memory);
  if (warp > 4 * M::kGroups) {
    if (threadIdx.x % 32 == 0) keep_storing<M, 0, true>(args, memory);
    return;
  }

  const Seat64 seat;
  const PackedMap map(args.map);
  const bool with_sums = args.normalized || args.vectors_out != nullptr;
  Turn stage, slot;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TileShape shape = shape_of<M>(args, task);
    float sum[W / 2];
#pragma unroll
    for (float& x : sum) x = 0.f;
    float z[4] = {};
#pragma unroll 1
    for (int t = 0; t < shape.tiles; ++t) {
      barrier_wait(memory.full(stage.index), stage.parity);
      const std::uint32_t keys = memory.tile(stage.index, 0) + seat.group * M::kHalfTile;
      const std::uint32_t values = memory.tile(stage.index, 1);
      std::uint32_t a[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) load_fragment<true>(a[s], seat.column_at(keys, s));
      map.apply(a);
      if (with_sums) {
        const std::uint32_t ones = memory.scratch() + stage.index * 128 + seat.lane % 4 * 4;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          ptx::mma_bf16(z, a[s], load_word(ones + s * 32), load_word(ones + s * 32 + 16));
        }
      }
      // NOTE: rows without a token are eps after the map, but their values are zero.
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        wgmma<bf16, W, true, true>(sum, a[s], inner_rows<M::kHalfTile>(values, s));
      }
      wgmma_commit();
      wgmma_wait<0>();
      arrive_read(memory.empty(stage.index));
      stage.advance(M::kStages);
    }
    barrier_wait(memory.slot_empty(slot.index), slot.parity ^ 1);
    put_summary<M>(memory.slot(slot.index), seat, sum, z[0], z[2], args.normalized);
    arrive_written(memory.slot_ready(slot.index));
    slot.advance(M::kSlots);
    if (args.vectors_out != nullptr) put_vector<M>(args, task, seat, z[0], z[2]);
  }
}

}  // namespace mhla::cuda::sm90
