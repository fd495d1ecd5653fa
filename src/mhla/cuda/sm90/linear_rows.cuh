// Denominators of shared_position on Hopper, a tile at a time: phi(q) . z of the own block, and for
// the backward phi(q) . (S~ d_o), which is <d_o, o> before the row's factor.
#pragma once

#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {

// Warpgroups take turns with the tiles. The forward needs of a slot what lies behind its summary.
template <int W, int kHeads, bool kBackward>
struct RowsMemory : TileMemory<W, kHeads, 2, kBackward ? 2 : 1,
                               !kBackward ? 8
                               : W == 128 ? 4
                                          : 5,
                               W == 128      ? 2
                               : kHeads == 1 ? 3
                                             : 5,
                               0> {
  using Base = TileMemory<W, kHeads, 2, kBackward ? 2 : 1,
                          !kBackward ? 8
                          : W == 128 ? 4
                                     : 5,
                          W == 128      ? 2
                          : kHeads == 1 ? 3
                                        : 5,
                          0>;
  using Base::Base;
  static constexpr int kThreadBlocks = W == 128 ? 1 : 2;
};

template <int W, int kHeads, bool kBackward>
__global__ void __launch_bounds__(RowsMemory<W, kHeads, kBackward>::kThreads,
                                  RowsMemory<W, kHeads, kBackward>::kThreadBlocks)
    tile_rows(const __grid_constant__ TileArgs args) {
  using M = RowsMemory<W, kHeads, kBackward>;
  constexpr int kSteps = W / 16, kHeadSteps = kSteps / kHeads;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  memory.start(args, {.empty = M::kGroupArrivals, .slot_empty = M::kArrivals});
  const int mover = static_cast<int>(threadIdx.x) - M::kGroups * 128;
  if (mover >= 0 && mover < 32) return keep_loading<M, false>(args, memory);
  ptx::begin_after_previous();
  if (mover >= 0) {
    if (mover == 32) keep_loading_summaries(args, memory);
    return;
  }

  const Seat64 seat;
  const PackedMap map(args.map);
  const TileLayout& layout = args.layout;
  Turn stage, slot;
  int whose = 0;  // the group whose turn it is
  // A block without places that hold no token.
  const bool whole = layout.whole && args.slots == layout.box[0] * layout.box[1] * layout.box[2];
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TileShape shape = shape_of<M>(args, task);
    const std::uint32_t summary = memory.slot(slot.index);
    const bool leads = whose == seat.group, idle = !leads && shape.tiles == 1;
    barrier_wait(memory.slot_full(slot.index), slot.parity);
    TilePlace place;
    std::uint32_t z[kSteps][2];
    if (!idle) {
      place = place_of<M>(args, task);
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        z[i / 2][i % 2] = key_pair<M, true>(summary, i / (2 * kHeadSteps), i % (2 * kHeadSteps));
      }
    }
#pragma unroll 1
    for (int t = 0; t < shape.tiles; ++t) {
      const int here = stage.index, parity = stage.parity;
      stage.advance(M::kStages);
      const bool mine = whose == seat.group;
      whose = whose + 1 == M::kGroups ? 0 : whose + 1;
      if (!mine) continue;
      barrier_wait(memory.full(here), parity);
      std::uint32_t a[kSteps][4];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        load_fragment<false>(a[s], seat.row_at(memory.tile(here, 0) + s / 4 * M::kHalfTile, s % 4));
      }
      [[maybe_unused]] float x[kHeads][M::D / 2];
      if constexpr (kBackward) {
        const std::uint32_t d_o = memory.tile(here, 1);
        wgmma_fence();
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const auto rows = [&](int s) {
            return inner_columns<M::kHalfTile>(d_o, h * kHeadSteps + s);
          };
          wgmma_shared<bf16, false>(x[h], rows(0), M::summary_columns(summary, h, 0));
#pragma unroll
          for (int s = 1; s < kHeadSteps; ++s) {
            wgmma_shared<bf16, true>(x[h], rows(s), M::summary_columns(summary, h, s));
          }
        }
        wgmma_commit();
      }
      map.apply(a);
      float base[kHeads][4] = {};  // all columns of these products are the same
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        ptx::mma_bf16(base[s / kHeadSteps], a[s], z[s][0], z[s][1]);
      }
      [[maybe_unused]] float dot[kHeads][2] = {};
      if constexpr (kBackward) {
        wgmma_wait<0>();
#pragma unroll
        for (int w = 0; w < 4 * kSteps; ++w) {
          const std::uint32_t pair = a[w / 4][w % 4];
          const int h = w / (4 * kHeadSteps);
          const float* y = x[h] + 2 * (w % (4 * kHeadSteps));
          dot[h][w % 2] += __uint_as_float(pair << 16) * y[0] +
                           __uint_as_float(pair & 0xffff0000u) * y[1];
        }
#pragma unroll
        for (int i = 0; i < 2 * kHeads; ++i) {
          float& sum = dot[i / 2][i % 2];
          sum += ptx::exchange(sum, 1);
          sum += ptx::exchange(sum, 2);
        }
      }
      arrive_read(memory.empty(here));
      if (seat.lane % 4 == 0) {
        const int rows = rows_of(shape, t);
#pragma unroll
        for (int i = 0; i < 2 * kHeads; ++i) {
          const int row = seat.warp * 16 + seat.lane / 4 + i % 2 * 8;
          if (row >= rows) continue;
          const int at = slot_of(layout, shape, t, row);
          if (!whole && !is_token(layout, place, at)) continue;
          const std::int64_t to = (place.number + i / 2 * layout.blocks) * args.slots + at;
          args.row_base[to] = base[i / 2][i % 2 * 2];
          if constexpr (kBackward) args.row_dots[to] = dot[i / 2][i % 2];
        }
      }
    }
    arrive_read(memory.slot_empty(slot.index));
    // Slots without a token are mixed, too.
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x % 128); leads && !whole && at < args.slots;
         at += 128) {
      if (is_token(layout, place, at)) continue;
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const std::int64_t to = (place.number + head * layout.blocks) * args.slots + at;
        args.row_base[to] = 0.f;
        if constexpr (kBackward) args.row_dots[to] = 0.f;
      }
    }
    slot.advance(M::kSlots);
  }
}

}  // namespace mhla::cuda::sm90
