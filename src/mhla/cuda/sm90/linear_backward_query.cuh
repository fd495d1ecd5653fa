// The backward over queries on Hopper: d_q and dS~ of a block, tile by tile. A warpgroup owns 64
// columns of q: rows of S~, and of dS~.
#pragma once

#include "mhla/cuda/sm90/linear_tile.cuh"

namespace mhla::cuda::sm90 {

// d_q leaves from where q was, dS~ from where S~ was.
template <int D>
struct BackwardQueryMemory : TileMemory<D, D / 64, 2, D == 128 ? 4 : 5, 2, 2 * 1024 + 768, 128> {
  using Base = TileMemory<D, D / 64, 2, D == 128 ? 4 : 5, 2, 2 * 1024 + 768, 128>;
  using Base::Base;
  static constexpr int kThreadBlocks = D == 128 ? 1 : 2;
  static constexpr int kRegisters = D == 128 ? 232 : 208, kMoverRegisters = 40;
  // Denominators and products of rows, [turn][group][64] pairs of floats.
  __device__ __forceinline__ std::uint32_t parts(int turn, int group) const {
    return this->scratch() + turn * 1024 + group * 512;
  }
  // Of the rows of a tile, 64 bf16 numbers each: factors, high and low parts of e.
  __device__ __forceinline__ std::uint32_t scalars(int group) const {
    return this->scratch() + 2 * 1024 + group * 384;
  }
};

// What a row's denominator makes of it: its factor and the gradient of its denominator.
struct RowScalars {
  float factor, e;

  // NOTE: the gradient of a mixing weight is a difference of what dS~ and dz~ give. They cancel
  // only if both see the same rounded factor.
  __device__ __forceinline__ void note(std::uint32_t at) const {
    const bf16 rounded = from_float<bf16>(factor);
    const float x = factor == 0.f ? 0.f : e * (to_float(rounded) / factor);
    const bf16 high = from_float<bf16>(x);
    store_half(at, rounded);
    store_half(at + 128, high);
    store_half(at + 256, from_float<bf16>(x - to_float(high)));
  }
};

template <int D>
__global__ void __launch_bounds__(BackwardQueryMemory<D>::kThreads,
                                  BackwardQueryMemory<D>::kThreadBlocks)
    tile_backward_q(const __grid_constant__ TileArgs args) {
  using M = BackwardQueryMemory<D>;
  constexpr int kSteps = D / 16;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  memory.start(
      {.ready = 4 * M::kGroups, .empty = 4 * M::kGroups + 1, .slot_ready = 4 * M::kGroups});
  ptx::begin_after_previous();
  if (threadIdx.x / 128 == M::kGroups) {
    give_registers<M::kMoverRegisters>();
    if (threadIdx.x % 128 / 32 == 0) keep_loading<M, true, false>(args, memory);
    if (threadIdx.x % 128 == 32) keep_storing<M, 1, true>(args, memory);
    return;
  }
  take_registers<M::kRegisters>();

  const Seat64 seat;
  const PackedMap map(args.map);
  const TileLayout& layout = args.layout;
  const int row = seat.warp * 16 + seat.lane / 4;  // and row + 8
  Turn stage, slot;
  int turn = 0;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const std::uint32_t summary = memory.slot(slot.index);
    const std::uint32_t z = summary + M::kSummary + seat.group * 128 + seat.lane % 4 * 4;
    barrier_wait(memory.slot_full(slot.index), slot.parity);
    float ds[D / 2], dz[4] = {};
#pragma unroll
    for (float& x : ds) x = 0.f;
#pragma unroll 1
    for (int t = 0; t < layout.tiles; ++t) {
      barrier_wait(memory.full(stage.index), stage.parity);
      const std::uint32_t queries = memory.tile(stage.index, 0) + seat.group * M::kHalfTile;
      const std::uint32_t d_o = memory.tile(stage.index, 1);
      std::uint32_t a[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) load_fragment<false>(a[s], seat.row_at(queries, s));

      // S~ d_o: times phi(q) it gives <d_o, o> / factor, with an o that was never rounded.
      float x[32];
      const std::uint32_t own_rows = summary + seat.group * M::kHalfTile;
      wgmma_fence();
      wgmma_shared<bf16, false>(x, inner_columns<M::kHalfTile>(d_o, 0),
                                inner_columns<M::kHalfSummary>(own_rows, 0));
#pragma unroll
      for (int s = 1; s < kSteps; ++s) {
        wgmma_shared<bf16, true>(x, inner_columns<M::kHalfTile>(d_o, s),
                                 inner_columns<M::kHalfSummary>(own_rows, s));
      }
      wgmma_commit();
      std::uint32_t columns[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) load_fragment<true>(columns[s], seat.column_at(queries, s));
      map.apply(a);
      map.apply(columns);
      float den[4] = {}, product[2] = {};
      if (args.normalized) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          ptx::mma_bf16(den, a[s], load_word(z + s * 32), load_word(z + s * 32 + 16));
        }
      }
      wgmma_wait<0>();

      // Row scalars from the columns of all groups.
      RowScalars scalars[2] = {{args.scale, 0.f}, {args.scale, 0.f}};
      if (args.normalized) {
#pragma unroll
        for (int w = 0; w < 16; ++w) {
          const std::uint32_t pair = a[w / 4][w % 4];
          product[w % 2] += __uint_as_float(pair << 16) * x[2 * w] +
                            __uint_as_float(pair & 0xffff0000u) * x[2 * w + 1];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          product[i] += ptx::exchange(product[i], 1);
          product[i] += ptx::exchange(product[i], 2);
        }
      }
      float total[2] = {den[0], den[2]};
      // NOTE: ldmatrix queues behind products, and a barrier might overtake it. So what precedes
      // the barrier depends on the columns; there are never 2^31 tasks, and the sum is zero.
      std::uint32_t loaded = 0;
#pragma unroll
      for (int s = 0; s < 4; ++s) loaded |= columns[s][0] | columns[s][2];
      loaded &= static_cast<std::uint32_t>(args.tasks >> 31);
      if constexpr (M::kGroups > 1) {
        if (seat.lane % 4 == 0) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const std::uint32_t at = memory.parts(turn, seat.group) + (row + 8 * i) * 8 + loaded;
            store_float(at, total[i]);
            store_float(at + 4, product[i]);
          }
        }
        ptx::sync_warps(8, M::kGroups * 128);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t first = memory.parts(turn, 0) + (row + 8 * i) * 8,
                              second = first + 512;
          total[i] = load_float(first) + load_float(second);
          product[i] = load_float(first + 4) + load_float(second + 4);
        }
        turn ^= 1;
      } else {
        ptx::sync_warps(1 + seat.group + static_cast<int>(loaded), 128);
      }
      const int rows = rows_of(layout, t);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (args.normalized) {
          const float factor = row + 8 * i < rows ? row_factor(args, total[i]) : 0.f;
          scalars[i] = {factor, -factor * factor * product[i]};
        }
        if (seat.lane % 4 == 0) scalars[i].note(memory.scalars(seat.group) + (row + 8 * i) * 2);
      }

      // d_q = (S~ d_o * factor + e z) * phi'(q).
      std::uint32_t words[16], zs[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) zs[j] = args.normalized ? load_word(z + j * 16) : 0u;
      map.slopes<4>(words, a, [&](int w, int i) {
        const float key = __uint_as_float(i == 0 ? zs[w / 2] << 16 : zs[w / 2] & 0xffff0000u);
        return x[2 * w + i] * scalars[w % 2].factor + scalars[w % 2].e * key;
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
      const std::uint32_t pairs = memory.scalars(seat.group) + seat.lane % 4 * 4;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if (args.normalized) {
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
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        wgmma<bf16, D, true, true>(ds, columns[s], inner_rows<M::kHalfTile>(d_o, s));
      }
      wgmma_commit();
      wgmma_wait<0>();
      arrive_read(memory.empty(stage.index));
      stage.advance(M::kStages);
    }
    // NOTE: all groups have read S~: they have met since.
    put_summary<M>(summary, seat, ds, dz[0] + dz[1], dz[2] + dz[3], args.normalized);
    arrive_written(memory.slot_ready(slot.index));
    slot.advance(M::kSlots);
  }
}

}  // namespace mhla::cuda::sm90
