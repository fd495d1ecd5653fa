// Forward by positions: o = (m * phi(q) phi(k)^T) v over its denominator, plus a local term.
#pragma once

#include "mhla/cuda/sm90/dense_position_local.cuh"
#include "mhla/cuda/sm90/dense_short_tile.cuh"

namespace mhla::cuda::sm90 {

// Mixing weights of this thread's scores: row i of a warp is block i, and so is column i of 16.
struct PositionWeights {
  float at[2][2][2];  // [row of the two][upper eight blocks][column of the two]

  __device__ __forceinline__ explicit PositionWeights(const DenseArgs& args) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = lane / 4 + n / 4 * 8, j = n / 2 % 2 * 8 + lane % 4 * 2 + n % 2;
      at[n / 4][n / 2 % 2][n % 2] = args.seen == Seen::all || j <= i
                                        ? __ldg(args.mixing + i * args.mixing_row_stride +
                                                j * args.mixing_column_stride)
                                        : 0.f;
    }
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

// Row tiles of a head alternate between the two warpgroups; there are two or four.
template <typename T, bool kShared, Local kLocal>
__device__ __forceinline__ void compute_positions(const PositionArgs& args,
                                                  const PositionShared<2>& shared,
                                                  const PositionWeights& weights) {
  constexpr bool kFit = std::is_same_v<T, f16>, kHasLocal = kLocal != Local::none;
  const int warpgroup = warpgroup_index(), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const std::uint32_t ones = shared.base + shared.kPlan.ones;
  const std::uint32_t out = shared.base + shared.kPlan.o + warpgroup * shared.kTileBytes;
  const int end = all_tiles(args);
  ShortQueries<T, 64> q;
  load_queries(q, args, shared.q(warpgroup));
  for (ShortWork work(args); !work.done(); work.next()) {
    const auto ka = shared.k(work.half), kb = shared.k(work.half + 1);
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    const auto taps = shared.taps(work.half / 2);
    for (int tile = warpgroup; tile < work.tiles(); tile += 2) {
      const bool begun = tile >= 2, last = tile + 2 >= work.tiles();
      const int position = work.row() / kPositionBlocks + tile * 4 + warp;

      // Scores of both halves. NOTE: the four slots of v are two pairs of neighbours.
      const TapRows rows = kHasLocal ? TapRows(shared, va.at, position) : TapRows();
      float a[kHalf / 2], b[kHalf / 2];
      if (!begun) ka.wait_full();
      wgmma_fence();
      issue_half_scores<T, 64>(a, q, ka.at);
      wgmma_commit();
      if (!begun) kb.wait_full();
      wgmma_fence();
      issue_half_scores<T, 64>(b, q, kb.at);
      wgmma_commit();
      if (!begun) {
        va.wait_full();
        vb.wait_full();
        if constexpr (kHasLocal) taps.wait_full();
      }

      // First half: weights, rounding, outputs
      float fit[2] = {1.f, 1.f};
      OwnBlock own;
      std::uint32_t p[kHalf / 16][4], p2[kHalf / 16][4];
      wgmma_wait<kFit ? 0 : 1>();
      const auto weigh = [&](float (&s)[kHalf / 2]) {
        if constexpr (!kShared) return weights.apply(s);
        own.add(s);
        own.after(weights, args.grid >> 30).apply(s);
      };
      weigh(a);
      if constexpr (kFit) {
        weigh(b);
        fit_rows(a, b, fit);
      }
      round_half<T>(p, a);
      PositionOutputs<T, !kShared> o;
      wgmma_fence();
      o.template issue<true>(p, va.at, ones);
      wgmma_commit();

      // Second half
      if constexpr (!kFit) {
        wgmma_wait<1>();
        weigh(b);
      }
      if (last) {
        release(ka.empty);
        release(kb.empty);
      }
      round_half<T>(p2, b);
      TapPair<T> pair;
      if constexpr (kHasLocal) pair.load(rows.at[0], taps.at, 0);
      wgmma_fence();
      o.template issue<false>(p2, vb.at, ones);
      wgmma_commit();
      float factor[2];
      if constexpr (kShared) {
        own.factors(factor, weights, args.dense.scale, args.dense.eps, fit);
      }
      const int next = work.tile + tile + 2;  // in this head or the next
      if (next < end) load_queries(q, args, shared.q(next));
      float local[32] = {};
      if constexpr (kLocal == Local::beside) add_local<T>(local, pair, rows, taps.at);
      wgmma_wait<0>();
      if (!kHasLocal && last) {
        release(va.empty);
        release(vb.empty);
      }

      // Normalise, add and write
      if constexpr (!kShared) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          factor[i] = row_factor(args.dense, o.at[32 + 2 * i], fit[i]);
        }
      }
      o.scale(factor);
      if constexpr (kLocal == Local::after) add_local<T>(o.at, pair, rows, taps.at);
      if constexpr (kLocal == Local::beside) {
#pragma unroll
        for (int i = 0; i < 32; ++i) o.at[i] += local[i];
      }
      o.store(args.maps[3][0], out, PositionStart(args, 3, work, position));
      // NOTE: the outputs are stored, so that values and taps have been read.
      if (kHasLocal && last) {
        release(va.empty);
        release(vb.empty);
        release(taps.empty);
      }
    }
  }
  if (threadIdx.x % 32 == 0) store_wait_read();
}

// The same for three warpgroups, a quarter of the keys at a time: fewer registers, more warps to
// wait for each other's products. Row tiles go round them across heads.
template <typename T, bool kShared, Local kLocal>
__device__ __forceinline__ void compute_quarters(const PositionArgs& args,
                                                 const PositionShared<3>& shared,
                                                 const PositionWeights& weights) {
  static_assert(std::is_same_v<T, bf16>);  // f16 fits all scores of a row before it rounds them
  constexpr bool kHasLocal = kLocal != Local::none;
  const int warpgroup = warpgroup_index(), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const std::uint32_t ones = shared.base + shared.kPlan.ones;
  const std::uint32_t out = shared.base + shared.kPlan.o + warpgroup * shared.kTileBytes;
  const int end = all_tiles(args);
  ShortQueries<T, 64> q;
  if (warpgroup < end) load_queries(q, args, shared.q(warpgroup));
  for (ShortWork work(args); !work.done(); work.next()) {
    const auto ka = shared.k(work.half), kb = shared.k(work.half + 1);
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    const auto taps = shared.taps(work.half / 2);
    const int tiles = work.tiles(), begin = (warpgroup - work.tile % 3 + 3) % 3;
    if (begin >= tiles) {
      for (const ShortBuffer& each : {ka, kb, va, vb}) {
        each.wait_full();
        release(each.empty);
      }
      if constexpr (kHasLocal) {
        taps.wait_full();
        release(taps.empty);
      }
      continue;
    }
    for (int tile = begin; tile < tiles; tile += 3) {
      const bool begun = tile != begin, last = tile + 3 >= tiles;
      const int position = work.row() / kPositionBlocks + tile * 4 + warp;
      const TapRows rows = kHasLocal ? TapRows(shared, va.at, position) : TapRows();
      OwnBlock own;
      PositionOutputs<T, !kShared> o;
      const auto weigh = [&](float (&s)[32]) {
        if constexpr (!kShared) return weights.apply(s);
        own.add(s);
        own.after(weights, args.grid >> 30).apply(s);
      };
      TapPair<T> pair;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const ShortBuffer& k = half == 0 ? ka : kb;
        const ShortBuffer& v = half == 0 ? va : vb;
        float a[32], b[32];
        std::uint32_t p[4][4], p2[4][4];
        if (!begun) k.wait_full();
        wgmma_fence();
        issue_quarter_scores<T>(a, q, k.at);
        wgmma_commit();
        issue_quarter_scores<T>(b, q, k.at + shared.kTileBytes);
        wgmma_commit();
        if (!begun) v.wait_full();
        wgmma_wait<1>();
        weigh(a);
        round_quarter<T>(p, a);
        wgmma_fence();
        if (half == 0) {
          o.template issue<true>(p, v.at, ones);
        } else {
          o.template issue<false>(p, v.at, ones);
        }
        wgmma_commit();
        wgmma_wait<1>();
        weigh(b);
        if (last) release(k.empty);
        round_quarter<T>(p2, b);
        if (kHasLocal && half == 1) {
          if (!begun) taps.wait_full();
          pair.load(rows.at[0], taps.at, 0);
        }
        wgmma_fence();
        o.template issue<false>(p2, v.at + shared.kTileBytes, ones);
        wgmma_commit();
        if (half == 0) wgmma_wait<1>();  // frees the registers of p
      }
      float factor[2];
      const float fit[2] = {1.f, 1.f};
      if constexpr (kShared) own.factors(factor, weights, args.dense.scale, args.dense.eps, fit);
      const int next = work.tile + tile + 3;  // in this head or another
      if (next < end) load_queries(q, args, shared.q(next));
      wgmma_wait<0>();
      if (!kHasLocal && last) {
        release(va.empty);
        release(vb.empty);
      }
      if constexpr (!kShared) {
#pragma unroll
        for (int i = 0; i < 2; ++i) factor[i] = row_factor(args.dense, o.at[32 + 2 * i], 1.f);
      }
      o.scale(factor);
      if constexpr (kHasLocal) add_local<T>(o.at, pair, rows, taps.at);
      o.store(args.maps[3][0], out, PositionStart(args, 3, work, position));
      // NOTE: the outputs are stored, so that values and taps have been read.
      if (kHasLocal && last) {
        release(va.empty);
        release(vb.empty);
        release(taps.empty);
      }
    }
  }
  if (threadIdx.x % 32 == 0) store_wait_read();
}

template <typename T, bool kShared, Local kLocal, int kWarpgroups>
__global__ void __launch_bounds__(128 * (kWarpgroups + 1), 1)
    dense_position_kernel(const __grid_constant__ PositionArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = PositionShared<kWarpgroups>;
  constexpr bool kHasLocal = kLocal != Local::none;
  constexpr int kThreads = 128 * kWarpgroups;  // that compute
  const Shared shared{ptx::shared_address(memory)};
  const int thread = static_cast<int>(threadIdx.x);
  if (warpgroup_index() == kWarpgroups) {
    if (thread == kThreads) shared.init_barriers();
    __syncthreads();
    give_registers<position_loader_registers(kWarpgroups)>();
    const int mapping = thread - kThreads - 32;
    if (mapping < 0) {
      if (thread == kThreads) PositionCopies<Shared>(args, shared).run();
    } else if (args.dense.feature == Feature::elu1) {
      prepare_positions<kHasLocal>(
          args, shared, mapping, [](std::uint32_t x) { return feature_pair<T, Feature::elu1>(x); });
    } else {
      prepare_positions<kHasLocal>(args, shared, mapping, PairMap<T>(args.dense.feature));
    }
    return;
  }
  const PositionWeights weights(args.dense);
  __syncthreads();
  take_registers<position_registers(kWarpgroups)>();
  const std::uint32_t one = std::is_same_v<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
  for (int i = 4 * thread; i < 2048 + 128; i += 4 * kThreads) {
    store_float(shared.base + Shared::kPlan.ones + i, __uint_as_float(i < 2048 ? one : 0u));
  }
  if constexpr (kHasLocal) write_tap_rows<kWarpgroups>(args, shared.base);
  fence_async();
  ptx::sync_warps(1, kThreads);
  if constexpr (kWarpgroups == 2) {
    compute_positions<T, kShared, kLocal>(args, shared, weights);
  } else {
    compute_quarters<T, kShared, kLocal>(args, shared, weights);
  }
}

}  // namespace mhla::cuda::sm90
