// The backward over queries on Hopper: d_q and dS~ of a block, tile by tile. A warpgroup owns 64
// columns of q: rows of S~, and of dS~.
#pragma once

#include "mhla/cuda/sm90/linear_move.cuh"

namespace mhla::cuda::sm90 {

// d_q leaves from where q was, dS~ from where S~ was.
template <int W, int kHeads>
struct BackwardQueryMemory : TileMemory<W, kHeads, W / 64, 2, W == 128 ? 4 : 5,
                                        W == 128      ? 2
                                        : kHeads == 1 ? 3
                                                      : 5,
                                        2 * 1024 + 768, 128> {
  using Base = TileMemory<W, kHeads, W / 64, 2, W == 128 ? 4 : 5,
                          W == 128      ? 2
                          : kHeads == 1 ? 3
                                        : 5,
                          2 * 1024 + 768, 128>;
  using Base::Base;
  static constexpr int kThreadBlocks = W == 128 ? 1 : 2;
  static constexpr int kRegisters = W == 128 ? 232 : 208, kMoverRegisters = W == 128 ? 40 : 48;
  // Denominators and products of rows, [turn][group][64] pairs of floats.
  __device__ __forceinline__ std::uint32_t parts(int turn, int group) const {
    return this->scratch() + turn * 1024 + group * 512;
  }
  // Of the rows of a tile, 64 bf16 numbers each: factors, high and low parts of e. For every
  // group, or for both heads of the only one.
  __device__ __forceinline__ std::uint32_t scalars(int group, int head) const {
    return this->scratch() + 2 * 1024 + (group + head) * 384;
  }
};

// What a row's denominator makes of it: its factor and the gradient of its denominator.
struct RowScalars {
  float factor, e;

  // NOTE: the gradient of a mixing weight is a difference of what dS~ and dz~ give. They cancel
  // only if both see the same rounded factor. Given factors are rounded, and their e is of others.
  template <bool kGiven>
  __device__ __forceinline__ void note(std::uint32_t at) const {
    const bf16 rounded = from_float<bf16>(factor);
    const float x = kGiven ? e : factor == 0.f ? 0.f : e * (to_float(rounded) / factor);
    const bf16 high = from_float<bf16>(x);
    store_half(at, rounded);
    store_half(at + 128, high);
    store_half(at + 256, from_float<bf16>(x - to_float(high)));
  }
};

// kGiven: rows have factors and gradients of phi(q) . z, where z is the key sum of the own block.
template <int W, int kHeads, bool kGiven>
__global__ void __launch_bounds__(BackwardQueryMemory<W, kHeads>::kThreads,
                                  BackwardQueryMemory<W, kHeads>::kThreadBlocks)
    tile_backward_q(const __grid_constant__ TileArgs args) {
  using M = BackwardQueryMemory<W, kHeads>;
  // Steps of 16 columns: of d_o of a head, and of this group's part of q of a head.
  constexpr int kSteps = M::D / 16, kOwnSteps = 4 / kHeads;
  const auto head_of = [](int word) { return word / (4 * kOwnSteps); };
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  memory.start(args, {.ready = M::kArrivals,
                      .empty = M::kArrivals + 1,  // and the thread that stores
                      .slot_ready = M::kArrivals});
  const int mover = static_cast<int>(threadIdx.x) - M::kGroups * 128;
  if (mover >= 0) {
    give_registers<M::kMoverRegisters>();
    if (mover < 32) return keep_loading<M, false>(args, memory);
    ptx::begin_after_previous();
    if (mover == 32) keep_storing<M, 1, true>(args, memory);
    if (mover == 64) keep_loading_summaries(args, memory);
    return;
  }
  ptx::begin_after_previous();
  take_registers<M::kRegisters>();

  const Seat64 seat;
  const PackedMap map(args.map);
  const TileLayout& layout = args.layout;
  const int row = seat.warp * 16 + seat.lane / 4;  // and row + 8
  Turn stage, slot;
  int turn = 0;
  float ds[W / 2] = {};
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TileShape shape = shape_of<M>(args, task);
    const std::uint32_t summary = memory.slot(slot.index);
    const auto key_sum = [&](int head, int j) {  // this group's part
      return key_pair<M, kGiven>(summary, head, seat.group * 8 + j);
    };
    const std::int64_t number = kGiven ? place_of<M>(args, task).number : 0;
    barrier_wait(memory.slot_full(slot.index), slot.parity);
    float dz[4] = {};
    int busy = -1;  // the stage that dS~ still reads
#pragma unroll 1
    for (int t = 0; t < shape.tiles; ++t) {
      const int rows = rows_of(shape, t);
      RowScalars scalars[kHeads][2];
      if constexpr (kGiven) {
#pragma unroll
        for (int i = 0; i < 2 * kHeads; ++i) {
          scalars[i / 2][i % 2] = {0.f, 0.f};
          if (row + i % 2 * 8 >= rows) continue;
          const std::int64_t at = (number + i / 2 * layout.blocks) * args.slots +
                                  slot_of(layout, shape, t, row + i % 2 * 8);
          scalars[i / 2][i % 2] = {__ldcg(args.factors + at), __ldcg(args.row_e + at)};
        }
      }
      barrier_wait(memory.full(stage.index), stage.parity);
      const std::uint32_t queries = memory.tile(stage.index, 0) + seat.group * M::kHalfTile;
      const std::uint32_t d_o = memory.tile(stage.index, 1);
      std::uint32_t a[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) load_fragment<false>(a[s], seat.row_at(queries, s));

      // S~ d_o: times phi(q) it gives <d_o, o> / factor, with an o that was never rounded.
      float x[kHeads][32 / kHeads];
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const auto rows = [&](int s) { return inner_columns<M::kHalfTile>(d_o, h * kSteps + s); };
        const auto own = [&](int s) { return M::summary_columns(summary, h, s, seat.group * 64); };
        wgmma_shared<bf16, false>(x[h], rows(0), own(0));
#pragma unroll
        for (int s = 1; s < kSteps; ++s) wgmma_shared<bf16, true>(x[h], rows(s), own(s));
      }
      wgmma_commit();
      wgmma_wait<1>();  // dS~ of the tile before
      if (busy >= 0) arrive_read(memory.empty(busy));
      std::uint32_t columns[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) load_fragment<true>(columns[s], seat.column_at(queries, s));
      map.apply(a);
      map.apply(columns);
      float den[kHeads][4] = {}, product[kHeads][2] = {};
      if (!kGiven && args.normalized) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const int head = s / kOwnSteps, j = s % kOwnSteps * 2;
          ptx::mma_bf16(den[head], a[s], key_sum(head, j), key_sum(head, j + 1));
        }
      }
      wgmma_wait<0>();

      // Row scalars from the columns of all groups.
      float total[kHeads][2];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        total[h][0] = den[h][0];
        total[h][1] = den[h][2];
      }
      if (!kGiven && args.normalized) {
#pragma unroll
        for (int w = 0; w < 16; ++w) {
          const std::uint32_t pair = a[w / 4][w % 4];
          const float* y = x[head_of(w)] + 2 * (w % (4 * kOwnSteps));
          product[head_of(w)][w % 2] += __uint_as_float(pair << 16) * y[0] +
                                        __uint_as_float(pair & 0xffff0000u) * y[1];
        }
#pragma unroll
        for (int i = 0; i < 2 * kHeads; ++i) {
          float& sum = product[i / 2][i % 2];
          sum += ptx::exchange(sum, 1);
          sum += ptx::exchange(sum, 2);
        }
      }
      // NOTE: ldmatrix queues behind products, and a barrier might overtake it. So what precedes
      // the barrier depends on the columns; there are never 2^31 tasks, and the sum is zero.
      std::uint32_t loaded = 0;
#pragma unroll
      for (int s = 0; s < 4; ++s) loaded |= columns[s][0] | columns[s][2];
      loaded &= static_cast<std::uint32_t>(args.tasks >> 31);
      if constexpr (!kGiven && M::kGroups > 1) {
        if (seat.lane % 4 == 0) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const std::uint32_t at = memory.parts(turn, seat.group) + (row + 8 * i) * 8 + loaded;
            store_float(at, total[0][i]);
            store_float(at + 4, product[0][i]);
          }
        }
        ptx::sync_warps(8, M::kGroups * 128);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t first = memory.parts(turn, 0) + (row + 8 * i) * 8,
                              second = first + 512;
          total[0][i] = load_float(first) + load_float(second);
          product[0][i] = load_float(first + 4) + load_float(second + 4);
        }
        turn ^= 1;
      } else {
        ptx::sync_warps(1 + seat.group + static_cast<int>(loaded), 128);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!kGiven) scalars[h][i] = {args.scale, 0.f};
          if (!kGiven && args.normalized) {
            const float factor = row + 8 * i < rows ? row_factor(args, total[h][i]) : 0.f;
            scalars[h][i] = {factor, -factor * factor * product[h][i]};
          }
          if (seat.lane % 4 == 0) {
            scalars[h][i].template note<kGiven>(memory.scalars(seat.group, h) + (row + 8 * i) * 2);
          }
        }
      }

      // d_q = (S~ d_o * factor + e z) * phi'(q).
      std::uint32_t words[16], zs[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        zs[j] = 0u;
        if (kGiven || args.normalized) zs[j] = key_sum(head_of(2 * j), j % (2 * kOwnSteps));
      }
      map.slopes<4>(words, a, [&](int w, int i) {
        const RowScalars& of_row = scalars[head_of(w)][w % 2];
        const float key = __uint_as_float(i == 0 ? zs[w / 2] << 16 : zs[w / 2] & 0xffff0000u);
        return x[head_of(w)][2 * (w % (4 * kOwnSteps)) + i] * of_row.factor + of_row.e * key;
      });
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        store_fragment(seat.row_at(queries, s), words[4 * s], words[4 * s + 1], words[4 * s + 2],
                       words[4 * s + 3]);
      }
      arrive_written(memory.ready(stage.index));
      seat.sync();  // scalars of all rows

      // dS~ += phi(q)^T diag(factor) d_o and dz~ += phi(q)^T e. e comes as the sum of two bf16
      // numbers, which end in the first two columns of dz.
      const std::uint32_t pairs = memory.scalars(seat.group, kHeads == 1 ? 0 : seat.warp / 2) +
                                  seat.lane % 4 * 4;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if (kGiven || args.normalized) {
          std::uint32_t e[2] = {};
          if (seat.lane < 8) {
            const std::uint32_t at = pairs + 128 + seat.lane / 4 * 128 + s * 32;
            e[0] = load_word(at);
            e[1] = load_word(at + 16);
          }
          ptx::mma_bf16(dz, columns[s], e[0], e[1]);
        }
        constexpr std::uint32_t kZero = 0x80008000u;  // minus zero keeps the sign of a zero product
        const std::uint32_t f[2] = {load_word(pairs + s * 32), load_word(pairs + s * 32 + 16)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          columns[s][i] = ptx::fma_bf16x2(columns[s][i], f[i / 2], kZero);
        }
      }
      wgmma_fence();
      wgmma_if<W>(ds, columns[0], inner_rows<M::kHalfTile>(d_o, 0), t);
#pragma unroll
      for (int s = 1; s < 4; ++s) {
        wgmma<bf16, W, true, true>(ds, columns[s], inner_rows<M::kHalfTile>(d_o, s));
      }
      wgmma_commit();
      busy = stage.index;
      stage.advance(M::kStages);
    }
    wgmma_wait<0>();
    arrive_read(memory.empty(busy));
    // NOTE: the warps of a group have met since they read its rows of S~ and part of the key sum.
    put_summary<M>(summary, seat, ds, dz[0] + dz[1], dz[2] + dz[3], !kGiven && args.normalized);
    if constexpr (kGiven) put_vector<M>(args, task, seat, dz[0] + dz[1], dz[2] + dz[3]);
    arrive_written(memory.slot_ready(slot.index));
    slot.advance(M::kSlots);
  }
}

}  // namespace mhla::cuda::sm90
