// Whole-head backward, first half: for 64 queries the row factors (denominator and <d_o, o>), and
// d_q = ((dP - mean) * m) phi(k) * scale * phi'(q) with dP = d_o v^T of all 256 keys in registers.
// With shared_position d_q = (dP * m * scale + e in the row's own block) phi(k) * phi'(q), scale
// and e given, so that there are no scores here.
#pragma once

#include "mhla/cuda/sm90/dense_whole_store.cuh"

namespace mhla::cuda::sm90 {

__device__ __forceinline__ float sum_over_quad(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// To one unit in the last place, without a branch.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Bit n: slot n of `slots` is of the block that lies in slot `own` of `owns`; tables in shared
// memory. All lanes of a warp.
__device__ __forceinline__ unsigned same_block(std::uint32_t slots, std::uint32_t owns, int own) {
  const int block = load_int(owns + 4 * own), other = load_int(slots + threadIdx.x % 16 * 4);
  return __ballot_sync(0xffffffffu, other == block && block >= 0);
}

template <typename T, int D, bool kShared>
__device__ __forceinline__ void whole_query_tile(const WholeArgs& args,
                                                 const WholeShared<D>& shared, const WholeHead& at,
                                                 int tile) {
  using Layout = WholeShared<D>;
  constexpr int kSlotsOfTile = kTile / kSlotRows;
  const int warp = threadIdx.x / 32 % 4;
  const WholeTensor<D> keys = shared.x(at.keys.set);
  const WholeTensor<D> gradients = shared.z(at.queries.set);
  const std::uint32_t weights = shared.base + Layout::kWeights +
                                (tile * kSlotsOfTile + warp) * kWholeSlots * 4;

  // dP of all keys, and the scores of the first of them
  // NOTE: two times 32 columns of scores; with 64 the registers overflow.
  constexpr int kN = 32, kParts = kWholeRows / kN;
  WholeFragments<D> q;
  std::uint32_t rest[4] = {};
  q.load(shared.x(at.queries.set), tile * kTile);
  if constexpr (D % 16 != 0) WholeFragments<D>::load_rest(rest, gradients, tile * kTile);
  float dp[kWholeRows / 2], s[2][kN / 2] = {};
  float scale[2] = {args.scale, args.scale}, mean[2] = {};  // kShared: e in the place of the mean
  unsigned own = 0;
  if constexpr (kShared) {
    const std::int64_t head = static_cast<std::int64_t>(at.batch * args.heads + at.head) *
                              args.row_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = load_int(shared.query_tokens() +
                                 (tile * kTile + warp * 16 + threadIdx.x % 32 / 4 + 8 * i) * 4);
      scale[i] = token < 0 ? 0.f : __ldg(args.row_factor + head + token);
      mean[i] = token < 0 ? 0.f : __ldg(args.row_gradient + head + token);
    }
    own = same_block(shared.key_blocks(), shared.query_blocks(), tile * kSlotsOfTile + warp);
  }
  const auto issue = [&](float (&d)[kN / 2], int part) {
    wgmma_over<T>(d, q.step[0], keys.columns_inner(part * kN, 0));
#pragma unroll
    for (int step = 1; step < WholeTensor<D>::kSteps; ++step) {
      wgmma<T, kN, false, true>(d, q.step[step], keys.columns_inner(part * kN, step));
    }
    wgmma_commit();
  };
  wgmma_fence();
  issue_shared_scores<T, D>(dp, gradients, tile * kTile, rest, shared.z(at.keys.set), 0);
  wgmma_commit();
  if constexpr (kShared) {
    wgmma_wait<0>();
  } else {
    issue(s[0], 0);
    issue(s[1], 1);
  }

  // Denominator and weighted sum of dP
  float den[2] = {}, sum[2] = {};
#pragma unroll
  for (int c = 0; c < (kShared ? 0 : kParts); ++c) {
    if (c + 1 < kParts) {
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    const float2 m = load_shared_2(weights + c * 8);
    const float weight[2] = {m.x, m.y};
#pragma unroll
    for (int k = 0; k < kN / kSlotRows; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float a = 0.f, b = 0.f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int e = 8 * k + j / 2 * 4 + 2 * i + j % 2;
          a = j == 0 ? s[c % 2][e] : a + s[c % 2][e];
          b = j == 0 ? s[c % 2][e] * dp[kN / 2 * c + e] : fmaf(s[c % 2][e], dp[kN / 2 * c + e], b);
        }
        den[i] = fmaf(weight[k], a, den[i]);
        sum[i] = fmaf(weight[k], b, sum[i]);
      }
    }
    if (c + 2 < kParts) {
      wgmma_fence();
      issue(s[c % 2], c + 2);
    }
  }
  if (!kShared && args.normalize) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float d = args.scale * sum_over_quad(den[i]) + args.eps;
      scale[i] = d == 0.f ? 0.f : args.scale * reciprocal(d);
      mean[i] = sum_over_quad(sum[i]) * scale[i];
    }
  }
  if (threadIdx.x % 4 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile * kTile + warp * 16 + threadIdx.x % 32 / 4 + 8 * i;
      asm volatile("st.shared.v2.f32 [%0], {%1,%2};\n" ::"r"(at.factors + row * 8), "f"(scale[i]),
                   "f"(mean[i])
                   : "memory");
    }
  }

  // d_q: a slot of 16 keys is a step of the product
  WholeSum<D> dq;
  std::uint32_t ds[kWholeSlots][4];
#pragma unroll
  for (int c = 0; c < kWholeTiles; ++c) {
    const float4 m = load_shared_4(weights + c * 16);
    const float weight[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
    for (int k = 0; k < kSlotsOfTile; ++k) {
      const bool mine = own >> (4 * c + k) & 1;
      const float shift[2] = {kShared ? (mine ? mean[0] : 0.f) : -mean[0] * weight[k],
                              kShared ? (mine ? mean[1] : 0.f) : -mean[1] * weight[k]};
      const float factor[2] = {kShared ? weight[k] * scale[0] : weight[k],
                               kShared ? weight[k] * scale[1] : weight[k]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = dp + 32 * c + 8 * k + 2 * i;
        ds[4 * c + k][i] = pack_pair<T>(fmaf(x[0], factor[i % 2], shift[i % 2]),
                                        fmaf(x[1], factor[i % 2], shift[i % 2]));
      }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 4 * c; k < 4 * c + 4; ++k) dq.template issue<T>(ds[k], keys, k * kSlotRows);
    wgmma_commit();
  }
  wgmma_wait<0>();

  // Feature map, write
  std::uint32_t words[D / 8][2];
  if constexpr (kShared) scale[0] = scale[1] = 1.f;
  round_rows<T, D>(words, dq, scale, args.feature, [&](int g, int i) { return q.pair(g, i); });
  const std::uint32_t tokens = shared.query_tokens() + tile * kTile * 4;
  if constexpr (Layout::kStageBytes != 0) {
    store_staged<T, D>(args.d_q, at, tokens, args.dk, shared.stage(), 0, words);
  } else {
    store_direct<T, D>(args.d_q, at, tokens, args.dk, words);
  }
}

}  // namespace mhla::cuda::sm90
