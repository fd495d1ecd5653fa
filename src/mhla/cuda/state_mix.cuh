// Mixtures of closed summaries, a warp at a time: beside a token, or alone.
#pragma once

#include "mhla/cuda/state_args.h"

namespace mhla::cuda::state {

// Shared memory of a warp that mixes.
struct MixMemory {
  float4 ring[kMixDepth][32];            // sources on their way, each lane's own
  float weights[kMixSources][kMixRows];  // of the rows at hand
  const float* from[kMixSources];
};
inline constexpr int kMixBytes = kMixWarps * static_cast<int>(sizeof(MixMemory));

// Four numbers a lane of `sources` summaries, for kRows rows: to = or += sum of weight * source.
// Every lane reads what it copied itself, so no barrier is needed.
template <int kRows>
__device__ __forceinline__ void mix_numbers(float* const* to, int rows, std::int64_t at, bool add,
                                            int sources, MixMemory& memory) {
  constexpr int kTogether = 4, kGroups = kMixDepth / kTogether;  // sources of a group of copies
  float4* ring = &memory.ring[0][threadIdx.x % 32];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int s = first; s < first + kTogether; ++s) {
      if (s < sources) ptx::copy_async(ring + s % kMixDepth * 32, memory.from[s] + at, true);
    }
    ptx::copy_commit();
  };
#pragma unroll 1
  for (int g = 0; g < kGroups; ++g) fetch(g * kTogether);
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (add && r < rows) sum[r] = *reinterpret_cast<const float4*>(to[r] + at);
  }
#pragma unroll 1
  for (int first = 0; first < sources; first += kTogether) {
    ptx::copy_wait<kGroups - 1>();
#pragma unroll
    for (int s = first; s < first + kTogether; ++s) {
      if (s >= sources) break;
      const float4 x = ring[s % kMixDepth * 32];
      float w[kRows];
      if constexpr (kRows == 1) {
        w[0] = memory.weights[s][0];
      } else {
        const auto* both = reinterpret_cast<const float4*>(memory.weights[s]);
        reinterpret_cast<float4*>(w)[0] = both[0];
        reinterpret_cast<float4*>(w)[1] = both[1];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sum[r] = make_float4(fmaf(w[r], x.x, sum[r].x), fmaf(w[r], x.y, sum[r].y),
                             fmaf(w[r], x.z, sum[r].z), fmaf(w[r], x.w, sum[r].w));
      }
    }
    fetch(first + kMixDepth);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < rows) *reinterpret_cast<float4*>(to[r] + at) = sum[r];
  }
}

// Weights and sources of a group of rows, as the warp reads them.
__device__ __forceinline__ void load_weights(const MixArgs& m, int head, int first_row, int sources,
                                             MixMemory& memory) {
  const std::int64_t begin = static_cast<std::int64_t>(m.chunk) * kMixSources;
  const int rows = min(kMixRows, m.rows - first_row);
  const float* weights = m.weights +
                         (static_cast<std::int64_t>(head) * m.rows + first_row) * m.sources + begin;
  ptx::sync_warp();  // the weights before these were read
  for (int s = threadIdx.x % 32; s < sources; s += 32) {
    memory.from[s] = m.from[begin + s];
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      memory.weights[s][r] = r < rows ? weights[static_cast<std::int64_t>(r) * m.sources + s] : 0.f;
    }
  }
  ptx::sync_warp();
}

// Pieces of one mixture: all of the first group of rows, then those of the next. Four groups of a
// wide mixture read the same summaries at about the same time, in different warps, so that all but
// one find them in the L2 cache.
__device__ __forceinline__ void mix_pieces(const MixArgs& m, int first, int last,
                                           MixMemory& memory) {
  const int pieces = m.count * kMixPieces;
  const int sources = min(kMixSources, m.sources - m.chunk * kMixSources);
  int loaded = -1;
  for (int id = first; id < last; ++id) {
    const int group = id / pieces, piece = id % pieces;
    const int slab = m.first + piece / kMixPieces, lane = slab / m.slabs_per_lane;
    const int head = m.per_head ? lane % m.heads : 0;
    if (loaded != group * m.heads + head) {
      loaded = group * m.heads + head;
      load_weights(m, head, group * kMixRows, sources, memory);
    }
    const std::int64_t in_lane = static_cast<std::int64_t>(slab % m.slabs_per_lane) * kMixSlab +
                                 (piece % kMixPieces * 32 + static_cast<int>(threadIdx.x) % 32) * 4;
    if (in_lane >= m.width) continue;
    const std::int64_t at = lane * m.width + in_lane;
    const bool add = m.add || m.chunk > 0;
    float* const* to = m.to + group * kMixRows;
    if (m.rows == 1) mix_numbers<1>(to, 1, at, add, sources, memory);
    else mix_numbers<kMixRows>(to, m.rows - group * kMixRows, at, add, sources, memory);
    if (m.clear && m.chunk == 0) {
      *reinterpret_cast<float4*>(m.clear + at) = make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }
}

// This warp's share of all pieces of all mixtures, as one of `warps`: neighbours in a list, so that
// weights are loaded seldom, of equal cost.
__device__ __forceinline__ void mix_share(const MixArgs* mixes, int count, int warp, int warps,
                                          MixMemory& memory) {
  const auto pieces = [&](const MixArgs& m) {
    return m.count * kMixPieces * ((m.rows + kMixRows - 1) / kMixRows);
  };
  constexpr int kOverhead = 16;  // of a piece, in sources
  const auto cost = [&](const MixArgs& m) {
    return min(kMixSources, m.sources - m.chunk * kMixSources) + kOverhead;
  };
  std::int64_t total = 0;
  for (int i = 0; i < count; ++i)
    total += static_cast<std::int64_t>(pieces(mixes[i])) * cost(mixes[i]);
  std::int64_t low = total * warp / warps, high = total * (warp + 1) / warps;
  for (int i = 0; i < count; ++i) {  // pieces that begin between low and high
    const MixArgs& m = mixes[i];
    const int each = cost(m), all = pieces(m);
    const auto before = [&](std::int64_t end) {
      const std::int64_t n = (end + each - 1) / each;
      return n < 0 ? 0 : n > all ? all : static_cast<int>(n);
    };
    mix_pieces(m, before(low), before(high), memory);
    low -= static_cast<std::int64_t>(all) * each;
    high -= static_cast<std::int64_t>(all) * each;
  }
}

__global__ void __launch_bounds__(kMixWarps * 32) mix_kernel(const __grid_constant__ MixArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  mix_share(&args, 1, static_cast<int>(blockIdx.x) * kMixWarps + warp,
            static_cast<int>(gridDim.x) * kMixWarps, reinterpret_cast<MixMemory*>(shared)[warp]);
}

}  // namespace mhla::cuda::state
