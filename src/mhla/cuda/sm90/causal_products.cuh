// What a warpgroup of the causal forwards multiplies: 64 queries with keys, values and summaries.
#pragma once

#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

// phi(q) of 16 rows a warp, as operands of the products.
template <int DK>
struct CausalQueries {
  std::uint32_t step[DK / 16][4];

  __device__ __forceinline__ void map(Feature feature, int dk) {
    if (feature == Feature::elu1) {
      each([](std::uint32_t x, int) { return feature_pair<bf16, Feature::elu1>(x); });
    } else if (feature == Feature::relu) {
      each([](std::uint32_t x, int) { return feature_pair<bf16, Feature::relu>(x); });
    } else {  // NOTE: the identity too, so that products read other registers than what was loaded
      const PairMap<bf16> phi(feature);
      each([&](std::uint32_t x, int) { return phi(x); });
    }
    if (dk == DK) return;
    each([&](std::uint32_t x, int i) {  // zero past dk, where the keys need not be
      const int column = i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
      return column + 1 < dk ? x : column < dk ? x & 0xffffu : 0u;
    });
  }

 private:
  template <typename Map>
  __device__ __forceinline__ void each(Map map) {
#pragma unroll
    for (int i = 0; i < DK / 4; ++i) step[i / 4][i % 4] = map(step[i / 4][i % 4], i);
  }
};

// What a warp holds: scores of 64 keys, and results.
template <int DK, int DV>
struct CausalTile {
  float s[kTile / 2];
  float o[DV / 2];
  std::uint32_t p[kTile / 16][4];

  // s = phi(q) phi(k)^T
  __device__ __forceinline__ void issue_scores(const CausalQueries<DK>& q, std::uint32_t k) {
    wgmma<bf16, kTile, false, false>(s, q.step[0], Box::columns_inner(k, 0));
#pragma unroll
    for (int i = 1; i < DK / 16; ++i) {
      wgmma<bf16, kTile, false, true>(s, q.step[i],
                                      Box::columns_inner(k + i / 4 * kBoxBytes, i % 4));
    }
  }
  // o += p v
  __device__ __forceinline__ void issue_outputs(std::uint32_t v) {
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      wgmma<bf16, DV, true, true>(o, p[i], tokens_of_boxes(v, i));
    }
  }
  // o += half of phi(q) times its rows of S~
  template <int kHalf>
  __device__ __forceinline__ void issue_far(const CausalQueries<DK>& q, std::uint32_t rows) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma<bf16, DV, true, true>(o, q.step[kHalf * 4 + i], tokens_of_boxes(rows, i));
    }
  }
  // p = w s, rounded; keys after the query are not seen when `diagonal`.
  template <bool kDiagonal>
  __device__ __forceinline__ void weigh(float w) {
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) s[i] *= w;
    const int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {  // 16 keys
      if (kDiagonal && step > warp) {
        p[step][0] = p[step][1] = p[step][2] = p[step][3] = 0;
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[step][i] = ptx::pack_bf16(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
      }
      if (kDiagonal && step == warp) {
        // Rows 0 to 7 and 8 to 15 see keys 0 to 7 and 8 to 15 as far as the diagonal.
        const int row = lane / 4, key = lane % 4 * 2;
        const std::uint32_t seen = (key <= row ? 0xffffu : 0u) | (key < row ? 0xffff0000u : 0u);
        p[step][0] &= seen;
        p[step][2] = 0;
        p[step][3] &= seen;
      }
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < DV / 2; ++i) o[i] = 0.f;
  }
  // 16 rows a warp leave through its part of shared memory, 64 columns at a time in two boxes.
  __device__ __forceinline__ void store(const CUtensorMap& to, std::uint32_t out,
                                        BoxStart start) const {
    constexpr int kBox = 16 * 128, kBoxes = DV < 128 ? 1 : 2;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < DV; first += 64, start.column += 64) {
      const std::uint32_t box = out + first / 64 % kBoxes * kBox;
      if (lane == 0) store_wait_read<kBoxes - 1>();
      __syncwarp();
#pragma unroll
      for (int g = 0; g < 8; g += 2) {
        store_groups(box + Box::chunk(lane % 16, g + lane / 16), o + (first / 8 + g) * 4);
      }
      fence_async();
      __syncwarp();
      if (lane == 0) {
        store_box(to, start, box);
        store_commit();
      }
    }
  }
};

}  // namespace mhla::cuda::sm90
