// Whole-head backward, second half: for 64 keys, with the transposed scores S = phi(k) phi(q)^T and
// dP = v d_o^T in registers, d_v = P^T d_o and d_k = dS^T phi(q) * phi'(k), and the mixing
// gradient's sums of E = S * (dP - mean) * scale over 16 keys and 16 queries.
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

// Keys and values of a tile: fragments in registers, or, for wide heads, the tile itself.
template <typename T, int D>
struct WholeKeys {
  static constexpr bool kInRegisters = D <= 64;
  static constexpr int kChunks = D / 8;
  Fragments<kInRegisters ? D : 8> k, v;
  std::uint32_t lone_k[4] = {}, lone_v[4] = {};
  std::uint32_t x, z;

  __device__ __forceinline__ WholeKeys(std::uint32_t x, std::uint32_t z) : x(x), z(z) {
    if constexpr (kInRegisters) {
      k.load(x);
      v.load(z);
    } else if constexpr (kChunks % 2 != 0) {
      load_lone_chunk<kChunks>(lone_k, x);
      load_lone_chunk<kChunks>(lone_v, z);
    }
  }
  __device__ __forceinline__ void issue(float (&s)[kTile / 2], float (&dp)[kTile / 2],
                                        std::uint32_t queries, std::uint32_t gradients) const {
    if constexpr (kInRegisters) {
      issue_scores<T, D, kTile>(s, k, queries);
      issue_scores<T, D, kTile>(dp, v, gradients);
    } else {
      issue_shared_scores<T, D>(s, x, lone_k, queries);
      issue_shared_scores<T, D>(dp, z, lone_v, gradients);
    }
  }
  // phi(k) of this thread's pair of columns.
  __device__ __forceinline__ std::uint32_t pair(int group, int row) const {
    if constexpr (kInRegisters) {
      return k.pair(group, row);
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
      return static_cast<std::uint32_t>(
          load_int(x + ((2 * warp + row) * kChunks + group) * kCore + lane * 4));
    }
  }
};

// last: the queries are read for the last time.
template <typename T, int D>
__device__ __forceinline__ void whole_key_tile(const WholeArgs& args, const WholeShared<D>& shared,
                                               const WholeHead& at, int tile, bool last) {
  using Layout = WholeShared<D>;
  constexpr int kChunks = D / 8, kSlotsOfTile = kTile / kSlotRows;
  const int warp = threadIdx.x / 32 % 4;
  const std::uint32_t slot = (tile * kSlotsOfTile + warp) * kWholeSlots * 4;
  const std::uint32_t weights = shared.base + Layout::kWeightsByKey + slot;
  const std::uint32_t queries = shared.x(at.queries.set), gradients = shared.z(at.queries.set);
  const std::uint32_t offset = tile * Layout::kTileBytes;
  const WholeKeys<T, D> keys(shared.x(at.keys.set) + offset, shared.z(at.keys.set) + offset);
  if constexpr (WholeKeys<T, D>::kInRegisters) release(shared.empty(at.keys.set, tile));

  float s[kTile / 2], dp[kTile / 2];
  // P in place of S, dS in place of dP, and the sums of E
  const auto weigh = [&](int column_tile) {
    const float4 m = load_shared_4(weights + column_tile * 16);
    const float weight[4] = {m.x, m.y, m.z, m.w};
    const std::uint32_t factors = at.factors + column_tile * kTile * 8 + threadIdx.x % 4 * 16;
    float sums[4];
#pragma unroll
    for (int k = 0; k < kSlotsOfTile; ++k) {
      float sum = 0.f;
#pragma unroll
      for (int g = 2 * k; g < 2 * k + 2; ++g) {
        const float4 f = load_shared_4(factors + g * 64);  // scale and mean of two queries
        const float scale[2] = {f.x, f.z}, mean[2] = {f.y, f.w};
        const float both[2] = {f.x * weight[k], f.z * weight[k]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float a = s[4 * g + i] * scale[i % 2], b = dp[4 * g + i] - mean[i % 2];
          sum = fmaf(a, b, sum);
          s[4 * g + i] = a * weight[k];
          dp[4 * g + i] = b * both[i % 2];
        }
      }
      sums[k] = sum;
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
  float dk[D / 2] = {}, dv[D / 2] = {};
  const auto issue_gradients = [&](int column_tile) {
    const std::uint32_t from = column_tile * Layout::kTileBytes;
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      wgmma<T, D, true, true>(dv, p[step], tokens_inner<kChunks>(gradients + from, step));
      wgmma<T, D, true, true>(dk, ds[step], tokens_inner<kChunks>(queries + from, step));
    }
    wgmma_commit();
  };

  // NOTE: every product has finished where the loop turns; ptxas serialises them otherwise.
  wgmma_fence();
  keys.issue(s, dp, queries, gradients);
  wgmma_commit();
  wgmma_wait<0>();
  weigh(0);
  round();
#pragma unroll 1
  for (int c = 1; c < kWholeTiles; ++c) {
    wgmma_fence();
    keys.issue(s, dp, queries + c * Layout::kTileBytes, gradients + c * Layout::kTileBytes);
    wgmma_commit();
    issue_gradients(c - 1);
    wgmma_wait<1>();
    weigh(c);
    wgmma_wait<0>();
    if (last) release(shared.empty(at.queries.set, c - 1));
    round();
  }
  wgmma_fence();
  issue_gradients(kWholeTiles - 1);
  wgmma_wait<0>();
  if (last) release(shared.empty(at.queries.set, kWholeTiles - 1));

  // Feature map, write
  const Slope<T> slope(args.feature);
  const std::uint32_t tokens = shared.key_tokens() + tile * kTile * 4;
  std::uint32_t words[kChunks][2];
#pragma unroll
  for (int g = 0; g < kChunks; ++g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 phi = unpack_pair<T>(keys.pair(g, i));
      words[g][i] = pack_pair<T>(dk[4 * g + 2 * i] * slope(phi.x),
                                 dk[4 * g + 2 * i + 1] * slope(phi.y));
    }
  }
  if constexpr (!WholeKeys<T, D>::kInRegisters) release(shared.empty(at.keys.set, tile));
  store_whole_rows<T, D>(args.d_k, at, tokens, args.dk, words);
#pragma unroll
  for (int g = 0; g < kChunks; ++g) {
    words[g][0] = pack_pair<T>(dv[4 * g], dv[4 * g + 1]);
    words[g][1] = pack_pair<T>(dv[4 * g + 2], dv[4 * g + 3]);
  }
  store_whole_rows<T, D>(args.d_v, at, tokens, args.dv, words);
}

}  // namespace mhla::cuda::sm90
