// Mixing for the causal backward in registers: S~ = m S and dS = m^T dS~ of up to 32 blocks in the
// place of S and dS~, and the gradient of m; nothing of them goes through shared memory.
//
// A warp takes 64 entries of all blocks at a time, 8 chunks of 16 bytes. Lane (g, t) has chunk g of
// blocks 8h + 2t and 8h + 2t + 1 for h = 0 to 3. Of one element of all chunks, those of the blocks
// of an h are a matrix of 8 x 8, rows over g, columns over t: a first factor for sums over blocks
// and, transposed (`movmatrix`), a factor for sums over entries. A product leaves the results of a
// chunk in the lane that has the chunk.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/causal_backward.h"

namespace mhla::cuda::sm90 {

// Chunks of 64 entries of all blocks.
struct MixTile {
  std::uint32_t even[RegisterMix::kGroups][4], odd[RegisterMix::kGroups][4];
};
// Elements 2p and 2p + 1 of its chunks, as matrices.
struct MixElements {
  std::uint32_t x[RegisterMix::kGroups][2];

  __device__ __forceinline__ MixElements(const MixTile& tile, int p) {
#pragma unroll
    for (int h = 0; h < RegisterMix::kGroups; ++h) {
      x[h][0] = __byte_perm(tile.even[h][p], tile.odd[h][p], 0x5410);
      x[h][1] = __byte_perm(tile.even[h][p], tile.odd[h][p], 0x7632);
    }
  }
};

// Which blocks are read or written: all but the first or all but the last of those that there are,
// which are 32 when kAll.
template <bool kAll, bool kFirst>
struct MixRows {
  int blocks;

  // Block 8h + 2t + odd
  __device__ __forceinline__ bool has(int h, int odd) const {
    const int t = static_cast<int>(threadIdx.x % 4);
    if (!kAll) {
      const int block = 8 * h + 2 * t + odd;
      return kFirst ? block < blocks - 1 : block > 0 && block < blocks;
    }
    if (kFirst) return h < 3 || odd == 0 || t < 3;
    return h > 0 || odd == 1 || t > 0;
  }
  // f(h, odd, element offset) of each
  template <typename F>
  __device__ __forceinline__ void each(int entries, F&& f) const {
    std::int64_t at = static_cast<std::int64_t>(threadIdx.x % 4 * 2) * entries;
#pragma unroll
    for (int i = 0; i < 2 * RegisterMix::kGroups; ++i) {
      if (has(i / 2, i % 2)) f(i / 2, i % 2, at);
      at += i % 2 == 0 ? entries : 7 * static_cast<std::int64_t>(entries);
    }
  }
};

// NOTE: past the L1 cache, which does not know what others have stored.
template <typename Rows>
__device__ __forceinline__ void load_mix_tile(MixTile& tile, const bf16* from, int entries,
                                              const Rows& rows) {
#pragma unroll
  for (int i = 0; i < 4 * RegisterMix::kGroups; ++i) {
    tile.even[i / 4][i % 4] = tile.odd[i / 4][i % 4] = 0;
  }
  rows.each(entries, [&](int h, int odd, std::int64_t at) {
    const uint4 x = __ldcg(reinterpret_cast<const uint4*>(from + at));
    std::uint32_t (&to)[4] = odd ? tile.odd[h] : tile.even[h];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  });
}
template <typename Rows>
__device__ __forceinline__ void store_mix_tile(const MixTile& tile, bf16* to, int entries,
                                               const Rows& rows) {
  rows.each(entries, [&](int h, int odd, std::int64_t at) {
    const std::uint32_t (&x)[4] = odd ? tile.odd[h] : tile.even[h];
    // NOTE: an assignment becomes four stores of 4 bytes.
    __stcg(reinterpret_cast<uint4*>(to + at), make_uint4(x[0], x[1], x[2], x[3]));
  });
}

// Weights as second factors: of the eight blocks of group n, which are written, with those of group
// h, which are read, h <= n, or h >= n when transposed. They lie in shared memory, three vectors of
// four words for each lane, so that tiles have the registers.
template <bool kTransposed>
struct MixWeights {
  std::uint32_t w[12];

  static constexpr int kVectors = 3;
  static constexpr int index(int n, int h) {
    return kTransposed ? index_of(3 - n, 3 - h) : index_of(n, h);
  }
  // By one warp, once.
  static __device__ __forceinline__ void prepare(std::uint32_t table, const bf16* weights, int ld) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < RegisterMix::kGroups; ++n) {
#pragma unroll
      for (int h = kTransposed ? n : 0; h <= (kTransposed ? 3 : n); ++h) {
        const int to = 8 * n + g, from = 8 * h + 2 * t;
        const bf16 lo = kTransposed ? weights[from * ld + to] : weights[to * ld + from];
        const bf16 hi = kTransposed ? weights[(from + 1) * ld + to] : weights[to * ld + from + 1];
        const int at = index(n, h);
        asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(vector(table, at / 4) + at % 4 * 4),
                     "r"(lo.bits | static_cast<std::uint32_t>(hi.bits) << 16)
                     : "memory");
      }
    }
  }
  __device__ __forceinline__ explicit MixWeights(std::uint32_t table) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      // NOTE: volatile, or ptxas loads them once and spills others.
      asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]), "=r"(w[4 * i + 3])
                   : "r"(vector(table, i))
                   : "memory");
    }
  }

 private:
  static constexpr int index_of(int n, int h) {
    constexpr int kFirst[] = {7, 8, 4, 0};
    return kFirst[n] + h;
  }
  static __device__ __forceinline__ std::uint32_t vector(std::uint32_t table, int i) {
    return table + (kTransposed * kVectors + i) * 512 + threadIdx.x % 32 * 16;
  }
};

// c += the products of 8 blocks
__device__ __forceinline__ void mma_8(float (&c)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

// m times a tile, or m^T times it. NOTE: groups in twos where a group sees both, so that nothing
// above the diagonal of groups is multiplied.
template <bool kTransposed>
__device__ __forceinline__ MixTile mixed(const MixTile& tile, std::uint32_t table) {
  using W = MixWeights<kTransposed>;
  const W weights(table);
  MixTile result;
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const MixElements e(tile, p);
#pragma unroll
    for (int n = 0; n < RegisterMix::kGroups; ++n) {
      float c[4] = {};
#pragma unroll
      for (int two = 0; two < 4; two += 2) {  // groups that are read
        const bool low = kTransposed ? two >= n : two <= n;
        const bool high = kTransposed ? two + 1 >= n : two + 1 <= n;
        if (low && high) {
          const std::uint32_t a[] = {e.x[two][0], e.x[two][1], e.x[two + 1][0], e.x[two + 1][1]};
          ptx::mma_bf16(c, a, weights.w[W::index(n, two)], weights.w[W::index(n, two + 1)]);
        } else if (low || high) {
          const int h = low ? two : two + 1;
          mma_8(c, e.x[h], weights.w[W::index(n, h)]);
        }
      }
      result.even[n][p] = ptx::pack_bf16(c[0], c[2]);
      result.odd[n][p] = ptx::pack_bf16(c[1], c[3]);
    }
  }
  return result;
}

__device__ __forceinline__ std::uint32_t transposed(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}

// sum[i][n] += <left of blocks 16 i and on, right of blocks 8 n and on> over elements 2p and 2p + 1
// of all chunks; nothing above the diagonal.
__device__ __forceinline__ void add_gradient(float (&sum)[2][4][4], const MixElements& left,
                                             const MixElements& right) {
  std::uint32_t b[RegisterMix::kGroups][2];
#pragma unroll
  for (int i = 0; i < 8; ++i) b[i / 2][i % 2] = transposed(right.x[i / 2][i % 2]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t a[] = {transposed(left.x[2 * i][0]), transposed(left.x[2 * i + 1][0]),
                               transposed(left.x[2 * i][1]), transposed(left.x[2 * i + 1][1])};
#pragma unroll
    for (int n = 0; n < 2 * i + 2; ++n) ptx::mma_bf16(sum[i][n], a, b[n][0], b[n][1]);
  }
}

// Units `first` and every `step`-th after it, by a warp. `order` says when the summaries of a pair
// are there, and is told of every unit that was mixed. `table`: of prepared weights. kAll: there
// are 32 blocks.
template <bool kAll, typename Order>
__device__ __forceinline__ void mix_in_registers(const PairMixArgs& args, std::uint32_t table,
                                                 int first, int step, float (&sum)[2][4][4],
                                                 const Order& order) {
  using P = RegisterMix;
  const int units_of_pair = args.entries / P::kEntries, units = args.pairs * units_of_pair;
  // S of the last block and dS~ of the first have not been made; S~ of the first and dS of the last
  // are not wanted.
  const MixRows<kAll, true> made{args.blocks};
  const MixRows<kAll, false> d_made{args.blocks};
  int before = -1;
#pragma unroll 1
  for (int unit = first; unit < units; unit += step) {
    const int pair = unit / units_of_pair;
    order.await(pair);
    std::int64_t at = static_cast<std::int64_t>(pair % args.slots) * args.blocks * args.entries +
                      (unit - pair * units_of_pair) * P::kEntries + threadIdx.x % 32 / 4 * 8;
#pragma unroll 1
    for (int half = 0; half < 2; ++half, at += P::kTile) {
      MixTile s, ds;
      load_mix_tile(s, args.summaries + at, args.entries, made);
      load_mix_tile(ds, args.gradients + at, args.entries, d_made);
#pragma unroll
      for (int p = 0; p < 4; ++p) add_gradient(sum, MixElements(ds, p), MixElements(s, p));
      if (half == 0 && before >= 0) order.done(before);  // its stores have had time to get there
      // NOTE: one after the other; results need registers of their own until they are stored.
      store_mix_tile(mixed<false>(s, table), args.summaries + at, args.entries, d_made);
      store_mix_tile(mixed<true>(ds, table), args.gradients + at, args.entries, made);
    }
    before = pair;
  }
  if (before >= 0) order.done(before);
}

}  // namespace mhla::cuda::sm90
