// Backward by keys: d_v = P^T d_o and d_k = dS^T phi(q) * phi'(k), with the transposed scores
// S = phi(k) phi(q)^T and dP = v d_o^T in registers, and the mixing gradient's sums over query
// blocks.
//
// d_m[i, b] is the sum of E = S * (dP - mean) * scale over queries in block i and keys in block b.
// The sum over queries is a product with their one-hot block matrix; the sum over keys is left to
// dense_reduce.cu.
#pragma once

#include "mhla/cuda/sm90/dense_tile.cuh"

namespace mhla::cuda::sm90 {

// Keys and values of a tile: fragments in registers, or, for wide heads, the tile itself.
template <typename T, int D>
struct KeyRows {
  static constexpr bool kInRegisters = D <= 72;
  Fragments<kInRegisters ? D : 8> k, v;
  std::uint32_t tile;

  __device__ __forceinline__ void load(std::uint32_t address) {
    tile = address;
    if constexpr (kInRegisters) {
      k.load(tile);
      v.load(tile + kTile * D * 2);
    }
  }
  template <int kN>
  __device__ __forceinline__ void issue(float (&s)[kN / 2], float (&dp)[kN / 2], std::uint32_t x,
                                        std::uint32_t z) const {
    if constexpr (kInRegisters) {
      issue_scores<T, D, kN>(s, k, x);
      issue_scores<T, D, kN>(dp, v, z);
    } else {
      constexpr int kChunks = D / 8;
      static_assert(kChunks % 2 == 0);
      const std::uint32_t values = tile + kTile * D * 2;
      wgmma_shared<T, false>(s, columns_inner<kChunks>(tile, 0), columns_inner<kChunks>(x, 0));
      wgmma_shared<T, false>(dp, columns_inner<kChunks>(values, 0), columns_inner<kChunks>(z, 0));
#pragma unroll
      for (int i = 1; i < kChunks / 2; ++i) {
        wgmma_shared<T, true>(s, columns_inner<kChunks>(tile, i), columns_inner<kChunks>(x, i));
        wgmma_shared<T, true>(dp, columns_inner<kChunks>(values, i), columns_inner<kChunks>(z, i));
      }
    }
  }
  // phi(k) of this thread's pair of columns.
  __device__ __forceinline__ std::uint32_t key_pair(int group, int row) const {
    if constexpr (kInRegisters) {
      return k.pair(group, row);
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
      std::uint32_t word;
      asm volatile("ld.shared.u32 %0, [%1];\n"
                   : "=r"(word)
                   : "r"(tile + ((2 * warp + row) * (D / 8) + group) * kCore + lane * 4)
                   : "memory");
      return word;
    }
  }
};

template <typename T, int D, int kMixingBlocks>
__global__ void __launch_bounds__(dense_threads(compute_warpgroups(DenseKernel::d_key, D)), 1)
    dense_backward_key_kernel(const __grid_constant__ DenseArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kWarpgroups = compute_warpgroups(DenseKernel::d_key, D);
  const Shared<D, true, kWarpgroups> shared(args, ptx::shared_address(memory));
  if (begin_roles<true, kMixingBlocks>(shared)) {
    give_registers<loader_registers(DenseKernel::d_key, D)>();
    Loader<T, D, kWarpgroups, true, false, true, kMixingBlocks>(args, shared.base).run(1);
    return;
  }
  take_registers<compute_registers(DenseKernel::d_key, D)>();

  // Columns at a time: with all 64, the operands in flight and the next scores overflow the
  // registers.
  constexpr int kN = 32;
  constexpr int kGroups = D / 8;
  constexpr int kPartBytes = kN / 8 * kGroups * kCore;  // from one part of a tile to the next
  const int warpgroup = warpgroup_index();
  constexpr SlotPlan plan = slot_plan(D, false, true);
  const TablePlan tables = table_plan(args.row_blocks, true, kMixingBlocks);
  const Slope<T> slope(args.feature);
  DenseGroup group = args.groups[0];
  Ring row_ring;
  ColumnWalk walk(args);
  Turns<kWarpgroups, false> turns;
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

      // Keys and values of this tile
      if (!asked) ids.load(args, work.group.row_first + first, work.group.rows - first);
      const Rows rows(ids, work.group.row_first + first, work.group.rows - first);
      const int row_buffer = row_ring.index;
      KeyRows<T, D> keys;
      barrier_wait(shared.row_full(warpgroup, row_buffer), row_ring.parity);
      keys.load(shared.row_tile(warpgroup, row_buffer));
      if constexpr (KeyRows<T, D>::kInRegisters) {
        release_after(keys.k, keys.v, shared.row_empty(warpgroup, row_buffer), args.items);
      }
      row_ring.advance(shared.buffers);
      load_next(ids, args, work, item, tile, warpgroup, turns);
      asked = true;

      float dm[kMixingBlocks / 2] = {};
      float dk[D / 2] = {}, dv[D / 2] = {};
      float s[kN / 2], dp[kN / 2];
      barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
      wgmma_fence();
      keys.template issue<kN>(s, dp, shared.slot(walk.ring.index),
                              shared.slot(walk.ring.index) + plan.z);
      wgmma_commit();
      wgmma_wait<0>();

      // P in place of S, dS in place of dP, and E
      float et[kN / 2];
      int part = 0;  // of the column tile
      const auto weigh = [&](int tile_index) {
        const std::uint32_t table = shared.table(tile_index, walk.ring.index);
        const std::uint32_t factors = shared.slot(walk.ring.index) + plan.factors +
                                      threadIdx.x % 4 * 16;
        by_mask(args, [&]<bool kCausal>() {
          float m[2][4];
#pragma unroll
          for (int g = 0; g < kN / 8; ++g) {
            const int group = part * (kN / 8) + g;
            if (g % 2 == 0)
              load_weights<true, kCausal>(m, rows, table, table + tables.order, group);
            const float4 f = load_shared_4(factors + group * 64);
            float a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = s[4 * g + i] * (i % 2 ? f.z : f.x);
            if constexpr (kCausal) hide<true>(a, rows, table + tables.order, group);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float w = m[g % 2][i], b = dp[4 * g + i] - (i % 2 ? f.w : f.y);
              s[4 * g + i] = a[i] * w;
              dp[4 * g + i] = b * (w * (i % 2 ? f.z : f.x));
              et[4 * g + i] = a[i] * b;
            }
          }
        });
      };
      std::uint32_t p[kN / 16][4], ds[kN / 16][4], e[kN / 8][4];
      const auto round = [&] {
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) {
          p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
          ds[i / 4][i % 4] = pack_pair<T>(dp[2 * i], dp[2 * i + 1]);
          e[i / 2][i % 2] = ptx::round_tf32(et[2 * i]);
          e[i / 2][i % 2 + 2] = ptx::round_tf32(et[2 * i + 1]);
        }
      };
      const auto issue_gradients = [&](int tile_index, int slot_index, int from) {
        const std::uint32_t slot = shared.slot(slot_index);
        const std::uint32_t one_hot = shared.table(tile_index, slot_index) + tables.one_hot;
#pragma unroll
        for (int step = 0; step < kN / 16; ++step) {
          const int at = from * (kN / 16) + step;
          wgmma<T, D, true, true>(dv, p[step], tokens_inner<kGroups>(slot + plan.z, at));
          wgmma<T, D, true, true>(dk, ds[step], tokens_inner<kGroups>(slot, at));
        }
#pragma unroll
        for (int g = 0; g < kN / 8; ++g) {
          const int offset = (from * (kN / 8) + g) * (kMixingBlocks / 8) * 2 * kCore;
          wgmma_tf32<kMixingBlocks>(dm, e[g], operand(one_hot, offset, kCore, 2 * kCore));
        }
        wgmma_commit();
      };
      weigh(0);
      round();
      for (int c = kN; c < work.group.columns; c += kN) {
        const int current = walk.ring.index, current_part = part;
        const bool finished = part == kTile / kN - 1;
        part = finished ? 0 : part + 1;
        if (finished) walk.ring.advance(shared.slots);

        // Scores of the next columns, then gradients from these
        const std::uint32_t next = shared.slot(walk.ring.index) + part * kPartBytes;
        barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
        wgmma_fence();
        keys.template issue<kN>(s, dp, next, next + plan.z);
        wgmma_commit();
        issue_gradients((c - kN) / kTile, current, current_part);
        wgmma_wait<1>();
        weigh(c / kTile);
        wgmma_wait<0>();
        if (finished && walk.last) release(shared.column_empty(current));
        round();
      }
      wgmma_fence();
      issue_gradients((work.group.columns - 1) / kTile, walk.ring.index, part);
      wgmma_wait<0>();
      if (walk.last) release(shared.column_empty(walk.ring.index));
      walk.ring.advance(shared.slots);

      // Feature map, write
      std::uint32_t words[kGroups][2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 phi = unpack_pair<T>(keys.key_pair(g, i));
          words[g][i] = pack_pair<T>(dk[4 * g + 2 * i] * slope(phi.x),
                                     dk[4 * g + 2 * i + 1] * slope(phi.y));
        }
      }
      store_rows<T, D>(args.out_x, work.batch, work.head, rows, args.dk, words);
      // Behind the use of what was read: an arrival may overtake a load.
      if constexpr (!KeyRows<T, D>::kInRegisters) release(shared.row_empty(warpgroup, row_buffer));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        words[g][0] = pack_pair<T>(dv[4 * g], dv[4 * g + 1]);
        words[g][1] = pack_pair<T>(dv[4 * g + 2], dv[4 * g + 3]);
      }
      store_rows<T, D>(args.out_z, work.batch, work.head, rows, args.dv, words);
      if (args.mixing_sums == nullptr) continue;

      // Mixing gradient, added to that of this thread block's earlier heads
      // NOTE: an address belongs to one thread, so additions in memory keep their order.
      const bool fresh = args.mixing_sums_by_head || item == static_cast<int>(blockIdx.x);
      float* sums = args.mixing_sums + threadIdx.x % 4 * 2 +
                    (args.mixing_sums_by_head ? work.pair : static_cast<int>(blockIdx.x)) *
                        args.mixing_sums_stride;
#pragma unroll
      for (int g = 0; g < kMixingBlocks / 8; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!rows.valid[i]) continue;
          float* to = sums + rows.token[i] * kMixingBlocks + 8 * g;
          if (fresh) {
            *reinterpret_cast<float2*>(to) = make_float2(dm[4 * g + 2 * i], dm[4 * g + 2 * i + 1]);
          } else {
            atomicAdd(to, dm[4 * g + 2 * i]);
            atomicAdd(to + 1, dm[4 * g + 2 * i + 1]);
          }
        }
      }
    }
  }
}

}  // namespace mhla::cuda::sm90
