// What a computing warp of the short forward holds of a row tile: queries, weights, scores,
// outputs.
#pragma once

#include "mhla/cuda/sm90/dense_short_load.cuh"
#include "mhla/cuda/sm90/dense_tile.cuh"

namespace mhla::cuda::sm90 {

// phi(q) of 16 rows a warp, as operands of the products.
template <typename T, int D>
struct ShortQueries {
  static constexpr int kMain = main_columns(D), kRest = rest_columns(D), kSteps = (D + 15) / 16;
  std::uint32_t step[kSteps][4];

  __device__ __forceinline__ void load(std::uint32_t tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int chunk = 2 * s + lane / 16;
      std::uint32_t at = tile;
      if (2 * s < kMain / 8) {
        at += SwizzledTile<kMain>::chunk(row, chunk);
      } else if constexpr (kRest > 0) {
        at += kTile * kMain * 2 + SwizzledTile<kRest>::chunk(row, chunk - kMain / 8);
      }
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(step[s][0]), "=r"(step[s][1]), "=r"(step[s][2]), "=r"(step[s][3])
                   : "r"(at)
                   : "memory");
    }
  }
  __device__ __forceinline__ std::uint32_t all_bits() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) bits |= step[i / 4][i % 4];
    return bits;
  }
  __device__ __forceinline__ void map(Feature feature, int dk) {
    if (feature == Feature::elu1) {
      each([](std::uint32_t x, int) { return feature_pair<T, Feature::elu1>(x); });
    } else {
      const PairMap<T> phi(feature);
      each([&](std::uint32_t x, int) { return phi(x); });
    }
    // Zero past dk, where the keys need not be.
    if constexpr (D % 16 != 0) step[kSteps - 1][2] = step[kSteps - 1][3] = 0;
    if (dk == D) return;
    each([&](std::uint32_t x, int i) {
      const int column = i / 2 * 8 + threadIdx.x % 4 * 2;
      return column + 1 < dk ? x : column < dk ? x & 0xffffu : 0u;
    });
  }

 private:
  template <typename Map>
  __device__ __forceinline__ void each(Map map) {
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) step[i / 4][i % 4] = map(step[i / 4][i % 4], i);
  }
};

template <typename T, int D>
__device__ __forceinline__ void issue_half_scores(float (&s)[kHalf / 2],
                                                  const ShortQueries<T, D>& q, std::uint32_t k) {
  constexpr int kMain = main_columns(D), kRest = rest_columns(D);
  wgmma<T, kHalf, false, false>(s, q.step[0], SwizzledTile<kMain>::columns_inner(k, 0));
#pragma unroll
  for (int i = 1; i < kMain / 16; ++i) {
    wgmma<T, kHalf, false, true>(s, q.step[i], SwizzledTile<kMain>::columns_inner(k, i));
  }
  if constexpr (kRest > 0) {
#pragma unroll
    for (int i = 0; i < (kRest + 15) / 16; ++i) {
      wgmma<T, kHalf, false, true>(s, q.step[kMain / 16 + i],
                                   SwizzledTile<kRest>::columns_inner(k + kHalf * kMain * 2, i));
    }
  }
}

// Outputs of 64 queries, in the two parts of their columns. The last part has eight columns more:
// products with ones, the row sums of the rounded scores, so that v = 1 gives o = 1.
template <typename T, int D>
struct ShortOutputs {
  static constexpr int kMain = main_columns(D), kRest = rest_columns(D);
  static constexpr int kMainN = kMain + (kRest == 0 ? 8 : 0), kRestN = kRest + 8;
  float main[kMainN / 2], rest[kRest > 0 ? kRestN / 2 : 1];

  template <bool kFirst>
  __device__ __forceinline__ void issue(const std::uint32_t (&p)[kHalf / 16][4], std::uint32_t v,
                                        std::uint32_t ones) {
#pragma unroll
    for (int i = 0; i < kHalf / 16; ++i) {
      using Tile = SwizzledTile<kMain>;
      const Operand tokens = kRest == 0 ? Tile::tokens_inner(v, i, ones) : Tile::tokens_inner(v, i);
      if (kFirst && i == 0) {
        wgmma<T, kMainN, true, false>(main, p[i], tokens);
      } else {
        wgmma<T, kMainN, true, true>(main, p[i], tokens);
      }
    }
    if constexpr (kRest > 0) {
#pragma unroll
      for (int i = 0; i < kHalf / 16; ++i) {
        const Operand tokens = SwizzledTile<kRest>::tokens_inner(v + kHalf * kMain * 2, i, ones);
        if (kFirst && i == 0) {
          wgmma<T, kRestN, true, false>(rest, p[i], tokens);
        } else {
          wgmma<T, kRestN, true, true>(rest, p[i], tokens);
        }
      }
    }
  }
  __device__ __forceinline__ float sum(int row) const {
    if constexpr (kRest == 0) return main[kMain / 2 + 2 * row];
    return rest[kRest / 2 + 2 * row];
  }

  __device__ __forceinline__ std::uint32_t pair(int group, int row, float factor) const {
    const int i = 4 * group + 2 * row;
    if constexpr (kRest > 0) {
      if (i >= kMain / 2) {
        const int j = i - kMain / 2;
        return pack_pair<T>(rest[j] * factor, rest[j + 1] * factor);
      }
    }
    return pack_pair<T>(main[i] * factor, main[i + 1] * factor);
  }
};

// Rounded outputs of 16 rows a warp: to shared memory in the layout of the copy engine, and out.
template <typename T, int D>
struct ShortResult {
  static constexpr int kMain = main_columns(D), kRest = rest_columns(D);
  std::uint32_t word[D / 8][2];  // [group of 8 columns][row of the two]

  __device__ __forceinline__ ShortResult(const ShortOutputs<T, D>& o, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < D / 4; ++i) word[i / 2][i % 2] = o.pair(i / 2, i % 2, factor[i % 2]);
  }
  // tile: of this warpgroup; start: of this warp's rows.
  __device__ __forceinline__ void store(const ShortArgs& args, std::uint32_t tile,
                                        BoxStart start) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane % 16;
    const std::uint32_t main = tile + warp * 16 * kMain * 2;
    const std::uint32_t rest = tile + (kTile * kMain + warp * 16 * kRest) * 2;
    if (lane == 0) store_wait_read();  // what this warp wrote before has left
    __syncwarp();
#pragma unroll
    for (int g = 0; g < kMain / 8; g += 2) {
      store_groups(main + SwizzledTile<kMain>::chunk(row, g + lane / 16), g);
    }
    if constexpr (kRest == 8) {
      asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};\n" ::"r"(
                       rest + SwizzledTile<8>::chunk(row, 0)),
                   "r"(word[kMain / 8][0]), "r"(word[kMain / 8][1])
                   : "memory");
    } else if constexpr (kRest > 0) {
#pragma unroll
      for (int g = 0; g < kRest / 8; g += 2) {
        store_groups(rest + SwizzledTile<kRest>::chunk(row, g + lane / 16), kMain / 8 + g);
      }
    }
    fence_async();
    __syncwarp();
    if (lane != 0) return;
    store_box(args.maps[3][0], start, main);
    if constexpr (kRest > 0) {
      start.column = kMain;
      store_box(args.maps[3][1], start, rest);
    }
    store_commit();
  }

 private:
  // Two groups of 8 columns; the lane names row and chunk.
  __device__ __forceinline__ void store_groups(std::uint32_t at, int group) const {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
                 "r"(word[group][0]), "r"(word[group][1]), "r"(word[group + 1][0]),
                 "r"(word[group + 1][1])
                 : "memory");
  }
};

// NOTE: not volatile: the table does not change, and loads may move ahead of the products' end.
__device__ __forceinline__ float4 load_weight_4(std::uint32_t at) {
  float4 x;
  asm("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(at));
  return x;
}

// Weights of this thread's scores in one half. rows: its two rows in the table. With one weight for
// two keys they are loaded while the products run; otherwise there are no registers for that.
template <bool kPairs>
struct HalfWeights {
  static constexpr int kLoads = kPairs ? 4 : 8;  // of four floats, a row
  std::uint32_t at[2];
  float4 ahead[2][kPairs ? kLoads : 1];

  __device__ __forceinline__ HalfWeights(const std::uint32_t (&rows)[2], int half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      at[i] = rows[i] + half * kLoads * 16;
      if constexpr (kPairs) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) ahead[i][j] = load_weight_4(at[i] + j * 16);
      }
    }
  }
  __device__ __forceinline__ void apply(float (&s)[kHalf / 2]) const {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 w = kPairs ? ahead[i][kPairs ? j : 0] : load_weight_4(at[i] + j * 16);
        const float m[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int n = 0; n < kHalf / 4 / kLoads; ++n) {  // pairs: 4 groups of 8 keys, else 2
          s[(j * kHalf / 4 / kLoads + n) / 2 * 4 + 2 * i + n % 2] *= kPairs ? m[n / 2] : m[n];
        }
      }
    }
  }
};

template <typename T>
__device__ __forceinline__ void round_half(std::uint32_t (&p)[kHalf / 16][4],
                                           const float (&s)[kHalf / 2]) {
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i) p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
}

// See fit_row.
__device__ __forceinline__ void fit_rows(float (&a)[kHalf / 2], float (&b)[kHalf / 2],
                                         float (&fit)[2]) {
  float largest[2] = {};
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) {
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fmaxf(fabsf(a[i]), fabsf(b[i])));
  }
  fit[0] = fit_row(largest[0]), fit[1] = fit_row(largest[1]);
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) a[i] *= fit[i / 2 % 2], b[i] *= fit[i / 2 % 2];
}

// The queries of a row tile, and where the weights of this thread's two rows are.
template <typename T, int D, bool kPairs>
struct ShortRows {
  ShortQueries<T, D> q;
  std::uint32_t weights[2];

  // number: of the tile in its ring; row: its first query.
  template <typename Shared>
  __device__ __forceinline__ void load(const ShortArgs& args, const Shared& shared, int number,
                                       int row) {
    const int lane_row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const auto buffer = shared.q(number);
    buffer.wait_full();
    q.load(buffer.at);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t block;
      asm volatile("ld.shared.u8 %0, [%1];\n"
                   : "=r"(block)
                   : "r"(shared.base + shared.kPlan.row_blocks + row + lane_row + 8 * i)
                   : "memory");
      weights[i] = shared.base + shared.kPlan.weights +
                   (block * 4 + threadIdx.x % 4) * short_quad_stride(kPairs) * 4;
    }
    q.map(args.dense.feature, args.dense.dk);
    // NOTE: ldmatrix queues behind products in flight, and an arrival overtakes it. So the address
    // of the barrier depends on what was read; there are never 2^30 thread blocks.
    release(buffer.empty + (q.all_bits() & static_cast<std::uint32_t>(args.grid >> 30)));
  }
};

}  // namespace mhla::cuda::sm90
