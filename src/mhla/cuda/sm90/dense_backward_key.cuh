// Backward by keys: d_v = P^T d_o and d_k = dS^T phi(q) * phi'(k), with the transposed scores
// S = phi(k) phi(q)^T and dP = v d_o^T in registers, and the mixing gradient's sums over query blocks.
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
__global__ void __launch_bounds__(kThreads, 1)
    dense_backward_key_kernel(const __grid_constant__ DenseArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Shared<D, true> shared(args, ptx::shared_address(memory));
  if (begin_roles(shared)) {
    give_registers<kLoaderRegisters>();
    Loader<T, D, true, false, true, kMixingBlocks>(args, shared.base).run(1);
    return;
  }
  take_registers<kComputeRegisters>();

  // Columns at a time: with all 64, the operands in flight and the next scores overflow the registers.
  constexpr int kN = 32;
  constexpr int kGroups = D / 8;
  constexpr int kPartBytes = kN / 8 * kGroups * kCore;  // from one part of a tile to the next
  const int warpgroup = warpgroup_index();
  const SlotPlan plan = slot_plan(D, args.row_blocks, false, true, kMixingBlocks);
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

      // Keys and values of this tile; sums of earlier heads
      const Rows rows(args, work.group.row_first + first, work.group.rows - first);
      const int row_buffer = row_ring.index;
      KeyRows<T, D> keys;
      barrier_wait(shared.row_full(warpgroup, row_buffer), row_ring.parity);
      keys.load(shared.row_tile(warpgroup, row_buffer));
      if constexpr (KeyRows<T, D>::kInRegisters) release(shared.row_empty(warpgroup, row_buffer));
      row_ring.advance(shared.buffers);
      float* sums = args.mixing_sums + threadIdx.x % 4 * 2 +
                    (args.mixing_sums_by_head ? work.pair : static_cast<int>(blockIdx.x)) *
                        args.mixing_sums_stride;
      const bool fresh = args.mixing_sums_by_head || item == static_cast<int>(blockIdx.x);
      float dm[kMixingBlocks / 2];
#pragma unroll
      for (int g = 0; g < kMixingBlocks / 8; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float2 x = {};
          if (args.mixing_sums != nullptr && !fresh && rows.valid[i]) {
            x = *reinterpret_cast<const float2*>(sums + rows.token[i] * kMixingBlocks + 8 * g);
          }
          dm[4 * g + 2 * i] = x.x, dm[4 * g + 2 * i + 1] = x.y;
        }
      }

      float dk[D / 2] = {}, dv[D / 2] = {};
      float s[kN / 2], dp[kN / 2];
      barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
      wgmma_fence();
      keys.template issue<kN>(s, dp, shared.slot(walk.ring.index),
                              shared.slot(walk.ring.index) + plan.z);
      wgmma_commit();
      wgmma_wait<0>();
      int part = 0;  // of the tile
      for (int c = kN;; c += kN) {
        const int current = walk.ring.index;
        const std::uint32_t slot = shared.slot(current);
        const int first_group = part * (kN / 8);

        // P, dS and E
        // NOTE: E is split into two bf16 terms, since rounding it once would show in d_m.
        std::uint32_t p[kN / 16][4], ds[kN / 16][4], e[kN / 16][4], e_rest[kN / 16][4];
        by_mask(args, [&]<bool kCausal>() {
#pragma unroll
          for (int g = 0; g < kN / 8; ++g) {
            const int group = first_group + g;
            float m[4], a[4], b[4];
            load_weights<true, kCausal>(m, rows, slot + plan.weights, slot + plan.order, group);
            const float4 f = load_shared_4(slot + plan.factors + group * 64 + threadIdx.x % 4 * 16);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              a[i] = s[4 * g + i] * (i % 2 ? f.z : f.x);
              b[i] = dp[4 * g + i] - (i % 2 ? f.w : f.y);
            }
            if constexpr (kCausal) hide<true>(a, rows, slot + plan.order, group);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int at = g % 2 * 2 + i;
              p[g / 2][at] = pack_pair<T>(a[2 * i] * m[2 * i], a[2 * i + 1] * m[2 * i + 1]);
              ds[g / 2][at] =
                  pack_pair<T>(b[2 * i] * (m[2 * i] * f.x), b[2 * i + 1] * (m[2 * i + 1] * f.z));
              const float e0 = a[2 * i] * b[2 * i], e1 = a[2 * i + 1] * b[2 * i + 1];
              e[g / 2][at] = ptx::pack_bf16(e0, e1);
              const float2 rounded = unpack_pair<bf16>(e[g / 2][at]);
              e_rest[g / 2][at] = ptx::pack_bf16(e0 - rounded.x, e1 - rounded.y);
            }
          }
        });

        // Gradients; scores of the next columns
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kN / 16; ++step) {
          const int at = part * (kN / 16) + step;
          wgmma<T, D, true, true>(dv, p[step], tokens_inner<kGroups>(slot + plan.z, at));
          wgmma<T, D, true, true>(dk, ds[step], tokens_inner<kGroups>(slot, at));
          const auto blocks = tokens_inner<kMixingBlocks / 8>(slot + plan.one_hot, at);
          wgmma<bf16, kMixingBlocks, true, true>(dm, e[step], blocks);
          wgmma<bf16, kMixingBlocks, true, true>(dm, e_rest[step], blocks);
        }
        wgmma_commit();
        const bool more = c < work.group.columns;
        const bool finished = !more || part == kTile / kN - 1;
        part = finished ? 0 : part + 1;
        if (finished) walk.ring.advance(shared.slots);
        if (more) {
          const std::uint32_t next = shared.slot(walk.ring.index) + part * kPartBytes;
          barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
          wgmma_fence();
          keys.template issue<kN>(s, dp, next, next + plan.z);
          wgmma_commit();
        }
        wgmma_wait<0>();
        if (finished && walk.last) release(shared.column_empty(current));
        if (!more) break;
      }

      // Feature map, write
      std::uint32_t words[kGroups][2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 phi = unpack_pair<T>(keys.key_pair(g, i));
          words[g][i] = pack_pair<T>(dk[4 * g + 2 * i] * feature_slope<T>(args.feature, phi.x),
                                     dk[4 * g + 2 * i + 1] * feature_slope<T>(args.feature, phi.y));
        }
      }
      if constexpr (!KeyRows<T, D>::kInRegisters) release(shared.row_empty(warpgroup, row_buffer));
      store_rows<T, D>(args.out_x, work.batch, work.head, rows, args.dk, words);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        words[g][0] = pack_pair<T>(dv[4 * g], dv[4 * g + 1]);
        words[g][1] = pack_pair<T>(dv[4 * g + 2], dv[4 * g + 3]);
      }
      store_rows<T, D>(args.out_z, work.batch, work.head, rows, args.dv, words);
      if (args.mixing_sums == nullptr) continue;
#pragma unroll
      for (int g = 0; g < kMixingBlocks / 8; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!rows.valid[i]) continue;
          *reinterpret_cast<float2*>(sums + rows.token[i] * kMixingBlocks + 8 * g) =
              make_float2(dm[4 * g + 2 * i], dm[4 * g + 2 * i + 1]);
        }
      }
    }
  }
}

}  // namespace mhla::cuda::sm90
