// Whole-head backward, first half: for 64 queries the row factors (denominator and <d_o, o>), and
// d_q = ((dP - mean) * m) phi(k) * scale * phi'(q) with dP = d_o v^T of all 256 keys in registers.
#pragma once

#include "mhla/cuda/sm90/dense_tile.cuh"
#include "mhla/cuda/sm90/dense_whole_load.cuh"

namespace mhla::cuda::sm90 {

// What both halves know of the head they work on.
struct WholeHead {
  int batch, head;
  SetRing keys, queries;  // sets of shared memory
  std::uint32_t factors;  // of its queries, in shared memory
};

// The last of an odd number of chunks as an operand, beside zeros; 64 rows from `tile` on.
template <int kChunks>
__device__ __forceinline__ void load_lone_chunk(std::uint32_t (&a)[4], std::uint32_t tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const std::uint32_t at = tile + ((2 * warp + lane / 8 % 2) * kChunks + kChunks - 1) * kCore +
                           lane % 8 * 16;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(a[0]), "=r"(a[1])
               : "r"(at)
               : "memory");
  a[2] = a[3] = 0;
}

// d = rows times columns^T, both tiles of shared memory; lone: load_lone_chunk of the rows.
template <typename T, int D, int kSize>
__device__ __forceinline__ void issue_shared_scores(float (&d)[kSize], std::uint32_t rows,
                                                    const std::uint32_t (&lone)[4],
                                                    std::uint32_t columns) {
  constexpr int kChunks = D / 8;
  wgmma_shared<T, false>(d, columns_inner<kChunks>(rows, 0), columns_inner<kChunks>(columns, 0));
#pragma unroll
  for (int i = 1; i < kChunks / 2; ++i) {
    wgmma_shared<T, true>(d, columns_inner<kChunks>(rows, i), columns_inner<kChunks>(columns, i));
  }
  if constexpr (kChunks % 2 != 0) {
    wgmma<T, 2 * kSize, false, true>(d, lone, columns_inner<kChunks>(columns, kChunks / 2));
  }
}

// Writes this warp's 16 of 64 rows to a [B, N, H, width] tensor; tokens: of the 64 rows, in shared
// memory. Neighbouring lanes swap halves of two column groups, so that four lanes store 32
// contiguous bytes.
template <typename T, int D>
__device__ __forceinline__ void store_whole_rows(const RowTensor& tensor, const WholeHead& at,
                                                 std::uint32_t tokens, int width,
                                                 const std::uint32_t (&words)[D / 8][2]) {
  if (tensor.data == nullptr) return;
  const int quad = threadIdx.x % 4;
  const bool odd = quad % 2 != 0;
  T* rows = tensor.head<T>(at.batch, at.head);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = load_int(tokens +
                               (threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * i) * 4);
    T* row = rows + static_cast<std::int64_t>(max(token, 0)) * tensor.token_stride;
#pragma unroll
    for (int g = 0; g + 1 < D / 8; g += 2) {
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words[g][i] : words[g + 1][i],
                                                  1);
      const int column = (odd ? g + 1 : g) * 8 + quad / 2 * 4;
      if (token >= 0 && column < width) {
        *reinterpret_cast<uint2*>(row + column) = odd ? make_uint2(other, words[g + 1][i])
                                                      : make_uint2(words[g][i], other);
      }
    }
    if constexpr (D / 8 % 2 != 0) {
      const int column = D - 8 + quad * 2;
      if (token >= 0 && column < width) {
        *reinterpret_cast<std::uint32_t*>(row + column) = words[D / 8 - 1][i];
      }
    }
  }
}

__device__ __forceinline__ float sum_over_quad(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <typename T, int D>
__device__ __forceinline__ void whole_query_tile(const WholeArgs& args,
                                                 const WholeShared<D>& shared, const WholeHead& at,
                                                 int tile) {
  using Layout = WholeShared<D>;
  constexpr int kChunks = D / 8, kSlotsOfTile = kTile / kSlotRows;
  const int warp = threadIdx.x / 32 % 4;
  const std::uint32_t offset = tile * Layout::kTileBytes;
  const std::uint32_t keys = shared.x(at.keys.set);
  const std::uint32_t weights = shared.base + Layout::kWeights +
                                (tile * kSlotsOfTile + warp) * kWholeSlots * 4;

  // dP of all keys, and the scores of the first of them
  // NOTE: two times 32 columns of scores; with 64 the registers overflow.
  constexpr int kN = 32, kParts = kWholeRows / kN, kPartBytes = kN * D * 2;
  Fragments<D> q;
  std::uint32_t lone[4] = {};
  q.load(shared.x(at.queries.set) + offset);
  if constexpr (kChunks % 2 != 0) {
    load_lone_chunk<kChunks>(lone, shared.z(at.queries.set) + offset);
  }
  float dp[kWholeRows / 2], s[2][kN / 2] = {};
  const auto issue = [&](float (&d)[kN / 2], int part) {
    wgmma_over<T>(d, q.step[0], columns_inner<kChunks>(keys + part * kPartBytes, 0));
#pragma unroll
    for (int step = 1; step < Fragments<D>::kSteps; ++step) {
      wgmma<T, kN, false, true>(d, q.step[step],
                                columns_inner<kChunks>(keys + part * kPartBytes, step));
    }
    wgmma_commit();
  };
  wgmma_fence();
  issue_shared_scores<T, D>(dp, shared.z(at.queries.set) + offset, lone, shared.z(at.keys.set));
  wgmma_commit();
  issue(s[0], 0);
  issue(s[1], 1);

  // Denominator and weighted sum of dP
  float den[2] = {}, sum[2] = {};
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
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
  float scale[2] = {args.scale, args.scale}, mean[2] = {};
  if (args.normalize) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float d = args.scale * sum_over_quad(den[i]) + args.eps;
      scale[i] = d == 0.f ? 0.f : args.scale / d;
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
  float dq[D / 2];
  std::uint32_t ds[kWholeSlots][4];
#pragma unroll
  for (int c = 0; c < kWholeTiles; ++c) {
    const float4 m = load_shared_4(weights + c * 16);
    const float weight[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
    for (int k = 0; k < kSlotsOfTile; ++k) {
      const float shift[2] = {-mean[0] * weight[k], -mean[1] * weight[k]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = dp + 32 * c + 8 * k + 2 * i;
        ds[4 * c + k][i] = pack_pair<T>(fmaf(x[0], weight[k], shift[i % 2]),
                                        fmaf(x[1], weight[k], shift[i % 2]));
      }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 4 * c; k < 4 * c + 4; ++k) {
      if (k == 0) {
        wgmma<T, D, true, false>(dq, ds[k], tokens_inner<kChunks>(keys, k));
      } else {
        wgmma<T, D, true, true>(dq, ds[k], tokens_inner<kChunks>(keys, k));
      }
    }
    wgmma_commit();
  }
  wgmma_wait<0>();

  // Feature map, write
  const Slope<T> slope(args.feature);
  std::uint32_t words[kChunks][2];
#pragma unroll
  for (int g = 0; g < kChunks; ++g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 phi = unpack_pair<T>(q.pair(g, i));
      words[g][i] = pack_pair<T>(dq[4 * g + 2 * i] * scale[i] * slope(phi.x),
                                 dq[4 * g + 2 * i + 1] * scale[i] * slope(phi.y));
    }
  }
  store_whole_rows<T, D>(args.d_q, at, shared.query_tokens() + tile * kTile * 4, args.dk, words);
}

}  // namespace mhla::cuda::sm90
