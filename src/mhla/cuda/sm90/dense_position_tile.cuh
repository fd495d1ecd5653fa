// What a computing warp of the forward by positions holds of a row tile: weights, sums of its own
// blocks, scores, outputs.
#pragma once

#include "mhla/cuda/sm90/dense_position_local.cuh"
#include "mhla/cuda/sm90/dense_short_tile.cuh"

namespace mhla::cuda::sm90 {

// Mixing weights of this thread's scores: row i of a warp is block i, and so is column i of 16.
struct PositionWeights {
  float at[2][2][2];  // [row of the two][upper eight blocks][column of the two]

  template <typename T>
  static __device__ __forceinline__ PositionWeights of(const PositionArgs& args) {
    const auto* narrow = static_cast<const std::uint16_t*>(args.narrow_mixing);
    const int lane = threadIdx.x % 32;
    PositionWeights weights;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = lane / 4 + n / 4 * 8, j = n / 2 % 2 * 8 + lane % 4 * 2 + n % 2;
      const int place = i * args.dense.mixing_row_stride + j * args.dense.mixing_column_stride;
      float& weight = weights.at[n / 4][n / 2 % 2][n % 2];
      if (args.dense.seen != Seen::all && j > i) {
        weight = 0.f;
      } else {
        weight = narrow != nullptr ? to_float(T{__ldg(narrow + place)})
                                   : __ldg(args.dense.mixing + place);
      }
    }
    return weights;
  }
  template <int kSize>
  __device__ __forceinline__ void apply(float (&s)[kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) s[i] *= at[i / 2 % 2][i / 4 % 2][i % 2];
  }
};

// phi(q) . z of every row, where z sums phi(k) over the row's own block: the scores of the keys in
// it, one in 16 columns. Sums of two columns; the lane that has the diagonal picks one.
struct OwnBlock {
  float sum[2][2] = {};  // [row of the two][column of the two]

  template <int kSize>
  __device__ __forceinline__ void add(const float (&s)[kSize]) {
#pragma unroll
    for (int group = 0; group < kSize / 4; ++group) {
      const int row = group % 2;  // columns of the upper eight blocks meet rows of these
      sum[row][0] += s[4 * group + 2 * row];
      sum[row][1] += s[4 * group + 2 * row + 1];
    }
  }
  // The weights once these sums are done; zero: that number, unknown to the compiler. NOTE: ptxas
  // adds up late otherwise, keeps the scores beside the weighted ones, and lacks registers.
  __device__ __forceinline__ PositionWeights after(const PositionWeights& weights, int zero) const {
    PositionWeights later = weights;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& weight = later.at[i / 2][i / 2][i % 2];  // only these meet the scores above
      weight = __int_as_float(__float_as_int(weight) | (__float_as_int(sum[i / 2][i % 2]) & zero));
    }
    return later;
  }
  // Factors of this thread's rows under shared_position: the denominator of block i is the sum over
  // j of m_ij times that of block j at the same position, another row of the warp.
  __device__ __forceinline__ void factors(float (&factor)[2], const PositionWeights& weights,
                                          float scale, float eps, const float (&fit)[2]) const {
    const int lane = threadIdx.x % 32, quad = lane % 4;
    float own[2], of[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) own[i] = lane / 4 % 2 == 0 ? sum[i][0] : sum[i][1];
    // Block j < 8 is in the lane of row j and columns j / 2 * 2 and on.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of[i][0] = __shfl_sync(0xffffffffu, own[i], 9 * quad);
      of[i][1] = __shfl_sync(0xffffffffu, own[i], 9 * quad + 4);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float den = 0.f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        den = fmaf(weights.at[row][n / 2][n % 2], of[n / 2][n % 2], den);
      }
      den += __shfl_xor_sync(0xffffffffu, den, 1);
      den += __shfl_xor_sync(0xffffffffu, den, 2);
      // NOTE: an IEEE division is a call, for which products in flight have no registers.
      const float total = (scale * den + eps) * fit[row];
      float inverse;
      asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(total));
      factor[row] = fabsf(total) < 0x1p-126f ? 0.f : scale * inverse;
    }
  }
};

// The local term of a warp's outputs, rounded, where a warpgroup of its own makes it: read from
// where the outputs will go.
struct StagedLocal {
  std::uint32_t word[8][2];  // [group of 8 columns][row of the two]

  __device__ __forceinline__ void load(std::uint32_t tile) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t own = tile + threadIdx.x / 32 % 4 * 16 * 128;
#pragma unroll
    for (int g = 0; g < 8; g += 2) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(word[g][0]), "=r"(word[g][1]), "=r"(word[g + 1][0]), "=r"(word[g + 1][1])
                   : "r"(own + SwizzledTile<64>::chunk(lane % 16, g + lane / 16))
                   : "memory");
    }
  }
  // Of accumulator i.
  __device__ __forceinline__ float at(int i) const {
    const std::uint32_t pair = word[i / 4][i / 2 % 2];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

// Outputs of 64 queries, and their row sums in eight columns more (see ShortOutputs) where kSums.
template <typename T, bool kSums>
struct PositionOutputs {
  static constexpr int kColumns = kSums ? 72 : 64;
  float at[kColumns / 2];

  // kSteps: of 16 keys
  template <bool kFirst, int kSteps>
  __device__ __forceinline__ void issue(const std::uint32_t (&p)[kSteps][4], std::uint32_t v,
                                        std::uint32_t ones) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      using Tile = SwizzledTile<64>;
      const Operand tokens = kSums ? Tile::tokens_inner(v, i, ones) : Tile::tokens_inner(v, i);
      if (kFirst && i == 0) {
        wgmma<T, kColumns, true, false>(at, p[i], tokens);
      } else {
        wgmma<T, kColumns, true, true>(at, p[i], tokens);
      }
    }
  }
  __device__ __forceinline__ void scale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) at[i] *= factor[i / 2 % 2];
  }
  __device__ __forceinline__ void scale(const float (&factor)[2], const StagedLocal& local) {
#pragma unroll
    for (int i = 0; i < 32; ++i) at[i] = fmaf(at[i], factor[i / 2 % 2], local.at(i));
  }
  // Rounded: 16 rows a warp to shared memory in the layout of the copy engine, and out.
  __device__ __forceinline__ void store(const CUtensorMap& map, std::uint32_t tile,
                                        const PositionStart& start) const {
    const int lane = threadIdx.x % 32, row = lane % 16;
    const std::uint32_t own = tile + threadIdx.x / 32 % 4 * 16 * 128;
    std::uint32_t word[8][2];  // [group of 8 columns][row of the two]
#pragma unroll
    for (int i = 0; i < 16; ++i) word[i / 2][i % 2] = pack_pair<T>(at[2 * i], at[2 * i + 1]);
    if (lane == 0) store_wait_read();  // what this warp wrote before has left
    __syncwarp();
#pragma unroll
    for (int g = 0; g < 8; g += 2) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(
                       own + SwizzledTile<64>::chunk(row, g + lane / 16)),
                   "r"(word[g][0]), "r"(word[g][1]), "r"(word[g + 1][0]), "r"(word[g + 1][1])
                   : "memory");
    }
    fence_async();
    __syncwarp();
    if (lane != 0) return;
    store_position(map, start, own);
    store_commit();
  }
};

// Scores of 64 queries with 64 keys, and their rounding.
template <typename T>
__device__ __forceinline__ void issue_quarter_scores(float (&s)[32], const ShortQueries<T, 64>& q,
                                                     std::uint32_t k) {
  wgmma<T, 64, false, false>(s, q.step[0], SwizzledTile<64>::columns_inner(k, 0));
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    wgmma<T, 64, false, true>(s, q.step[i], SwizzledTile<64>::columns_inner(k, i));
  }
}
template <typename T>
__device__ __forceinline__ void round_quarter(std::uint32_t (&p)[4][4], const float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
}

template <typename T>
__device__ __forceinline__ void load_queries(ShortQueries<T, 64>& q, const PositionArgs& args,
                                             const ShortBuffer& buffer) {
  buffer.wait_full();
  q.load(buffer.at);
  q.map(args.dense.feature, args.dense.dk);
  // NOTE: see ShortRows: an arrival overtakes ldmatrix unless its address depends on the values.
  release(buffer.empty + (q.all_bits() & static_cast<std::uint32_t>(args.grid >> 30)));
}

// Row tiles that this thread block computes.
__device__ __forceinline__ int all_tiles(const PositionArgs& args) {
  return ((args.items - 1 - static_cast<int>(blockIdx.x)) / args.grid + 1) *
         (args.split_rows / kTile);
}

}  // namespace mhla::cuda::sm90
