// Whole-head backward, second half: for 64 keys, with the transposed scores S = phi(k) phi(q)^T and
// dP = v d_o^T in registers, d_v = P^T d_o and d_k = dS^T phi(q) * phi'(k), and the mixing
// gradient's sums of E = S * (dP - mean) * scale over 16 keys and 16 queries. With shared_position
// the mean is zero, and e of a query is added to its dS in its own block.
#pragma once

#include "mhla/cuda/sm90/dense_whole_query.cuh"

namespace mhla::cuda::sm90 {

// Sums four values over the lanes of a warp; lane l < 4 gets that of value l % 2 * 2 + l / 2.
__device__ __forceinline__ float sum_four_over_warp(const float (&x)[4]) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
  const float a = (odd ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[2], 1);
  const float b = (odd ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, odd ? x[1] : x[3], 1);
  float sum = (high ? b : a) + __shfl_xor_sync(0xffffffffu, high ? a : b, 2);
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

// Keys and values of a tile: in registers, or, for wide heads, where they lie.
template <typename T, int D>
struct WholeKeys {
  static constexpr bool kInRegisters = D <= 64;
  // Gradients have a stage of their own, so that the rows can be released early.
  static constexpr bool kStaged = WholeShared<D>::kStageBytes != 0;
  WholeTensor<D> x, z;
  int first;  // row
  WholeFragments<kStaged ? D : 64> k;
  WholeFragments<kInRegisters ? D : 64> v;
  std::uint32_t rest_k[4] = {}, rest_v[4] = {};

  __device__ __forceinline__ WholeKeys(const WholeTensor<D>& x, const WholeTensor<D>& z, int first)
      : x(x), z(z), first(first) {
    if constexpr (kInRegisters) {
      k.load(x, first);
      v.load(z, first);
    } else if constexpr (D % 16 != 0) {
      WholeFragments<D>::load_rest(rest_k, x, first);
      WholeFragments<D>::load_rest(rest_v, z, first);
    }
  }
  __device__ __forceinline__ void issue(float (&s)[kTile / 2], float (&dp)[kTile / 2],
                                        const WholeTensor<D>& queries,
                                        const WholeTensor<D>& gradients, int row) const {
    if constexpr (kInRegisters) {
      issue_whole_scores<T, D>(s, k, queries, row);
      issue_whole_scores<T, D>(dp, v, gradients, row);
    } else {
      issue_shared_scores<T, D>(s, x, first, rest_k, queries, row);
      issue_shared_scores<T, D>(dp, z, first, rest_v, gradients, row);
    }
  }
  // phi(k) of this thread's pair of columns.
  __device__ __forceinline__ std::uint32_t pair(int group, int i) const {
    if constexpr (kStaged) {
      return k.pair(group, i);
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
      return static_cast<std::uint32_t>(
          load_int(x.chunk(first + warp * 16 + lane / 4 + 8 * i, group) + lane % 4 * 4));
    }
  }
  // Writes a gradient by way of this warp's stage, or of its rows of the tile, which nothing reads
  // again.
  __device__ __forceinline__ void store(const RowTensor& tensor, const WholeShared<D>& shared,
                                        const WholeHead& at, int width, const WholeTensor<D>& rows,
                                        const std::uint32_t (&words)[D / 8][2]) const {
    const std::uint32_t tokens = shared.key_tokens() + first * 4;
    if constexpr (kStaged) {
      store_staged<T, D>(tensor, at, tokens, width, shared.stage(), 0, words);
    } else {
      store_staged<T, D>(tensor, at, tokens, width, rows, first + threadIdx.x / 32 % 4 * 16, words);
    }
  }
};

// last: the queries are read for the last time.
template <typename T, int D, bool kShared>
__device__ __forceinline__ void whole_key_tile(const WholeArgs& args, const WholeShared<D>& shared,
                                               const WholeHead& at, int tile, bool last) {
  using Layout = WholeShared<D>;
  constexpr int kSlotsOfTile = kTile / kSlotRows;
  const int warp = threadIdx.x / 32 % 4;
  const std::uint32_t slot = (tile * kSlotsOfTile + warp) * kWholeSlots * 4;
  const std::uint32_t weights = shared.base + Layout::kWeightsByKey + slot;
  const WholeTensor<D> queries = shared.x(at.queries.set), gradients = shared.z(at.queries.set);
  WholeKeys<T, D> keys(shared.x(at.keys.set), shared.z(at.keys.set), tile * kTile);
  float s[kTile / 2], dp[kTile / 2];
  unsigned own = 0;  // bit n: query slot n is of this warp's block
  if constexpr (kShared) {
    own = same_block(shared.query_blocks(), shared.key_blocks(), tile * kSlotsOfTile + warp);
  }
  // Scale and mean of this thread's two queries in a group of 8
  const auto load_factors = [&](float4(&f)[2], int column_tile, int k) {
    const std::uint32_t from = at.factors + (column_tile * kTile + k * kSlotRows) * 8 +
                               threadIdx.x % 4 * 16;
    f[0] = load_shared_4(from);
    f[1] = load_shared_4(from + 64);
  };
  // P in place of S, dS in place of dP, and the sums of E; m and f: weights of the column tile and
  // factors of its first slot.
  const auto weigh = [&](int column_tile, const float4& m, float4(&f)[2]) {
    const float weight[4] = {m.x, m.y, m.z, m.w};
    float sums[4];
#pragma unroll
    for (int k = 0; k < kSlotsOfTile; ++k) {
      float4 next[2] = {};
      if (k + 1 < kSlotsOfTile) load_factors(next, column_tile, k + 1);
      float sum = 0.f;
      const bool mine = own >> (column_tile * kSlotsOfTile + k) & 1;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // a column, two rows
        const int e = 8 * k + i / 2 * 4 + i % 2;
        const float scale = i % 2 ? f[i / 2].z : f[i / 2].x;
        const float mean = i % 2 ? f[i / 2].w : f[i / 2].y;
        const float both = scale * weight[k];
        const float a = kShared ? dp[e] : dp[e] - mean;
        const float b = kShared ? dp[e + 2] : dp[e + 2] - mean;
        sum = fmaf(scale, fmaf(s[e], a, s[e + 2] * b), sum);
        s[e] *= both, s[e + 2] *= both;
        if constexpr (kShared) {
          const float shift = mine ? mean : 0.f;
          dp[e] = fmaf(a, both, shift), dp[e + 2] = fmaf(b, both, shift);
        } else {
          dp[e] = a * both, dp[e + 2] = b * both;
        }
      }
      sums[k] = sum;
      f[0] = next[0], f[1] = next[1];
    }
    // NOTE: the sums of a key slot belong to one warp, so additions keep their order.
    const float sum = sum_four_over_warp(sums);
    const int lane = threadIdx.x % 32;
    if (lane < 4) {
      const std::uint32_t to = shared.base + Layout::kSums + slot +
                               (column_tile * kSlotsOfTile + lane % 2 * 2 + lane / 2) * 4;
      store_float(to, load_float(to) + sum);
    }
  };
  std::uint32_t p[kTile / 16][4], ds[kTile / 16][4];
  const auto round = [&] {
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
      ds[i / 4][i % 4] = pack_pair<T>(dp[2 * i], dp[2 * i + 1]);
    }
  };
  WholeSum<D> dk, dv;
  const auto issue_dv = [&](int column_tile, int step) {
    dv.template issue<T>(p[step], gradients, column_tile * kTile + step * 16);
  };
  const auto issue_dk = [&](int column_tile, int step) {
    dk.template issue<T>(ds[step], queries, column_tile * kTile + step * 16);
  };

  // NOTE: every product has finished where the loop turns; ptxas serialises them otherwise.
  wgmma_fence();
  keys.issue(s, dp, queries, gradients, 0);
  wgmma_commit();
  float4 m = load_shared_4(weights), f[2];
  load_factors(f, 0, 0);
  wgmma_wait<0>();
  // NOTE: an arrival may overtake the loads of the fragments, but not products that read them.
  if constexpr (WholeKeys<T, D>::kInRegisters) release(shared.empty(at.keys.set, tile));
  weigh(0, m, f);
  // NOTE: asked for early, or their first use waits between the products.
  const auto load_next = [&](int c) {
    const int next = min(c + 1, kWholeTiles - 1);
    m = load_shared_4(weights + next * 16);
    load_factors(f, next, 0);
  };
  load_next(0);
  round();
#pragma unroll 1
  for (int c = 1; c < kWholeTiles; ++c) {
    wgmma_fence();
    keys.issue(s, dp, queries, gradients, c * kTile);
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      issue_dv(c - 1, step);
      issue_dk(c - 1, step);
    }
    wgmma_commit();
    wgmma_wait<1>();
    weigh(c, m, f);
    load_next(c);
    wgmma_wait<0>();
    if (last) release(shared.empty(at.queries.set, c - 1));
    round();
  }

  // The last of d_v, then the last of d_k beside writing d_v
  constexpr bool kEarly = WholeKeys<T, D>::kStaged && !WholeKeys<T, D>::kInRegisters;
  if constexpr (kEarly) keys.k.load(keys.x, keys.first);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) issue_dv(kWholeTiles - 1, step);
  wgmma_commit();
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) issue_dk(kWholeTiles - 1, step);
  wgmma_commit();
  // NOTE: an arrival may overtake the loads, so its address depends on them; items are below 2^31.
  if constexpr (kEarly) {
    release(shared.empty(at.keys.set, tile) +
            (keys.k.all_bits() & static_cast<std::uint32_t>(args.items >> 31)));
  }
  wgmma_wait<1>();
  std::uint32_t words[D / 8][2];
#pragma unroll
  for (int g = 0; g < D / 8; ++g) {
    words[g][0] = pack_pair<T>(dv[4 * g], dv[4 * g + 1]);
    words[g][1] = pack_pair<T>(dv[4 * g + 2], dv[4 * g + 3]);
  }
  keys.store(args.d_v, shared, at, args.dv, keys.z, words);
  wgmma_wait<0>();
  if (last) release(shared.empty(at.queries.set, kWholeTiles - 1));

  // Feature map, write
  const float one[2] = {1.f, 1.f};
  round_rows<T, D>(words, dk, one, args.feature, [&](int g, int i) { return keys.pair(g, i); });
  keys.store(args.d_k, shared, at, args.dk, keys.x, words);
  if constexpr (!WholeKeys<T, D>::kStaged) release(shared.empty(at.keys.set, tile));
}

}  // namespace mhla::cuda::sm90
