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
  float4* ring = &memory.ring[0][threadIdx.x % 32];
  const auto fetch = [&](int s) {
    if (s < sources) ptx::copy_async(ring + s % kMixDepth * 32, memory.from[s] + at, true);
    ptx::copy_commit();
  };
#pragma unroll 1
  for (int s = 0; s < kMixDepth; ++s) fetch(s);
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (add && r < rows) sum[r] = *reinterpret_cast<const float4*>(to[r] + at);
  }
#pragma unroll 2
  for (int s = 0; s < sources; ++s) {
    ptx::copy_wait<kMixDepth - 1>();
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
    fetch(s + kMixDepth);
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
  ptx::sync_warp();  // the weights before these were read
  for (int s = threadIdx.x % 32; s < sources; s += 32) {
    memory.from[s] = m.from[begin + s];
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      const int row = first_row + r;
      const std::int64_t at = (static_cast<std::int64_t>(head) * m.rows + row) * m.sources + begin;
      memory.weights[s][r] = row < m.rows ? m.weights[at + s] : 0.f;
    }
  }
  ptx::sync_warp();
}

// The pieces of all mixtures in turn, `stride` warps side by side. Neighbours take the groups of
// rows of one piece, so that its sources are fetched from memory once.
__device__ __forceinline__ void mix_pieces(const MixArgs* mixes, int count, int first, int stride,
                                           MixMemory& memory) {
  int id = first;
  for (int i = 0; i < count; ++i) {
    const MixArgs& m = mixes[i];
    const int groups = (m.rows + kMixRows - 1) / kMixRows, pieces = m.count * kMixPieces * groups;
    const int sources = min(kMixSources, m.sources - m.chunk * kMixSources);
    int loaded = -1;
    for (; id < pieces; id += stride) {
      const int group = id % groups, piece = id / groups;
      const int slab = m.first + piece / kMixPieces, lane = slab / m.slabs_per_lane;
      const int head = m.per_head ? lane % m.heads : 0;
      if (loaded != head * groups + group) {
        loaded = head * groups + group;
        load_weights(m, head, group * kMixRows, sources, memory);
      }
      const std::int64_t in_lane = static_cast<std::int64_t>(slab % m.slabs_per_lane) * kMixSlab +
                                   (piece % kMixPieces * 32 + static_cast<int>(threadIdx.x) % 32) *
                                       4;
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
    id -= pieces;
  }
}

__global__ void __launch_bounds__(kMixWarps * 32) mix_kernel(const __grid_constant__ MixArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  mix_pieces(&args, 1, static_cast<int>(blockIdx.x) * kMixWarps + warp,
             static_cast<int>(gridDim.x) * kMixWarps, reinterpret_cast<MixMemory*>(shared)[warp]);
}

}  // namespace mhla::cuda::state
