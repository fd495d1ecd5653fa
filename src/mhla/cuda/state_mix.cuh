// Mixtures of closed summaries, a warp at a time: beside a token, or alone.
#pragma once

#include "mhla/cuda/state_place.cuh"

namespace mhla::cuda::state {

// Shared memory of a warp that mixes.
template <typename M>
struct MixMemory {
  Chunk ring[kMixDepth][32];             // sources on their way
  float weights[kMixSources][kMixRows];  // of the rows at hand
  const M* from[kMixSources];
};
inline constexpr int kMixBytes = kMixWarps * static_cast<int>(sizeof(MixMemory<float>));

// What a warp does at a time: 128 numbers of up to kMixSources summaries, four a lane.
struct MixPiece {
  std::int64_t at;   // of the first
  int numbers;       // at most 128, a multiple of 16
  float* const* to;  // [rows]
  int rows, sources;
  const float* start;  // what the only row begins with, or null
  bool add;            // to what the targets hold
};

// NOTE: targets go through __ldcg and __stcg because the compiler splits a plain access into four.
__device__ __forceinline__ float4* quad(float* p) { return reinterpret_cast<float4*>(p); }
__device__ __forceinline__ const float4* quad(const float* p) {
  return reinterpret_cast<const float4*>(p);
}

// to = or += sum of weight * source for kRows rows. A lane copies 16 bytes of a source at a time,
// so that half a warp copies a packed one; then lanes read what others copied.
template <typename M, int kRows>
__device__ __forceinline__ void mix_numbers(const MixPiece& piece, MixMemory<M>& memory) {
  constexpr int kTogether = 4 / sizeof(M), kLanes = 32 / kTogether, kUnrolled = 2 / kTogether;
  const int lane = static_cast<int>(threadIdx.x) % 32, copied = lane % kLanes * kChunk<M>;
  const bool copies = copied < piece.numbers, inside = lane * 4 < piece.numbers;
  const auto fetch = [&](int group) {
    const int s = group * kTogether + lane / kLanes;
    if (copies && s < piece.sources) {
      ptx::copy_async(&memory.ring[group % kMixDepth][lane], memory.from[s] + piece.at + copied,
                      true);
    }
    ptx::copy_commit();
  };
  if constexpr (kTogether > 1) ptx::sync_warp();  // the piece before was read
  const int begun = min(kMixDepth - 1, (piece.sources + kTogether - 1) / kTogether);
#pragma unroll 4
  for (int group = 0; group < begun; ++group) fetch(group);
#pragma unroll 1
  for (int group = begun; group < kMixDepth - 1; ++group) ptx::copy_commit();
  const std::int64_t at = piece.at + lane * 4;
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (inside && piece.add && r < piece.rows) sum[r] = __ldcg(quad(piece.to[r] + at));
  }
  if (kRows == 1 && inside && piece.start && !piece.add) sum[0] = __ldcg(quad(piece.start + at));
#pragma unroll kUnrolled
  for (int group = 0; group * kTogether < piece.sources; ++group) {
    ptx::copy_wait<kMixDepth - 2>();
    // All lanes have this group, and have read the one before, whose place is taken next.
    if constexpr (kTogether > 1) ptx::sync_warp();
    fetch(group + kMixDepth - 1);
    const M* sources = reinterpret_cast<const M*>(memory.ring[group % kMixDepth]);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int s = group * kTogether + i;
      if (s >= piece.sources) break;
      const float4 x = load_four(sources + i * 128 + lane * 4);
      float w[kRows];
      if constexpr (kRows == 1) {
        w[0] = memory.weights[s][0];
      } else {
        const auto* both = reinterpret_cast<const float4*>(memory.weights[s]);
        reinterpret_cast<float4*>(w)[0] = both[0];
        reinterpret_cast<float4*>(w)[1] = both[1];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) add_scaled(sum[r], w[r], x);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (inside && r < piece.rows) __stcg(quad(piece.to[r] + at), sum[r]);
  }
}

// Weights and sources of a group of rows, as the warp reads them.
template <typename M>
__device__ __forceinline__ void load_weights(const MixArgs& m, int head, int first_row, int sources,
                                             MixMemory<M>& memory) {
  const std::int64_t begin = static_cast<std::int64_t>(m.chunk) * kMixSources;
  ptx::sync_warp();  // the weights before these were read
  for (int s = threadIdx.x % 32; s < sources; s += 32) {
    memory.from[s] = static_cast<const M*>(m.from[begin + s]);
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      const int row = first_row + r;
      const std::int64_t at = (static_cast<std::int64_t>(head) * m.rows + row) * m.sources + begin;
      memory.weights[s][r] = row < m.rows ? m.weights[at + s] : 0.f;
    }
  }
  ptx::sync_warp();
}

// Where the numbers of a piece are.
struct MixPlace {
  std::int64_t at;
  int numbers, head;  // none behind the last slab of a lane

  __device__ __forceinline__ MixPlace(const MixArgs& m, int part) {
    const int slab = m.first + part / kMixPieces, lane = slab / m.slabs_per_lane;
    const std::int64_t in_lane = static_cast<std::int64_t>(slab % m.slabs_per_lane) * kMixSlab +
                                 part % kMixPieces * 128;
    at = lane * m.width + in_lane;
    numbers = static_cast<int>(max(min(m.width - in_lane, std::int64_t{128}), std::int64_t{0}));
    head = m.per_head ? lane % m.heads : 0;
  }
};

template <typename M>
__device__ __forceinline__ void clear_numbers(const MixArgs& m, const MixPlace& place) {
  const int own = static_cast<int>(threadIdx.x) % 32 * 4;
  if (m.clear && m.chunk == 0 && own < place.numbers) {
    store_four(static_cast<M*>(m.clear) + place.at + own, make_float4(0.f, 0.f, 0.f, 0.f));
  }
}

// One row of few sources, the mixture of every step: a piece is hardly more than the wait for its
// sources, so a warp asks for those of several pieces before it waits. Lane s knows source s.
template <typename M>
__device__ __forceinline__ void mix_short_row(const MixArgs& m, int first, int stride, int pieces,
                                              MixMemory<M>& memory) {
  constexpr int kTogether = 4 / sizeof(M), kLanes = 32 / kTogether;
  constexpr int kGroups = kMixShort / kTogether, kAtOnce = kMixDepth / kGroups;
  const int lane = static_cast<int>(threadIdx.x) % 32, copied = lane % kLanes * kChunk<M>;
  const bool known = lane < m.sources;
  const auto source = known ? reinterpret_cast<std::uint64_t>(m.from[lane]) : 0;
#pragma unroll 1
  for (int id = first; id < pieces; id += kAtOnce * stride) {
    float weight[kAtOnce];
    float4 sum[kAtOnce];
    ptx::sync_warp();  // the pieces before were read
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      weight[b] = 0.f;
      sum[b] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (id + b * stride < pieces) {
        const MixPlace place(m, id + b * stride);
        if (known) weight[b] = m.weights[place.head * m.sources + lane];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int s = group * kTogether + lane / kLanes;
          const auto from = reinterpret_cast<const M*>(ptx::broadcast(source, s));
          if (s < m.sources && copied < place.numbers) {
            ptx::copy_async(&memory.ring[b * kGroups + group][lane], from + place.at + copied,
                            true);
          }
        }
        const float* begin = m.add ? m.to[0] : m.start;
        if (begin && lane * 4 < place.numbers) sum[b] = __ldcg(quad(begin + place.at + lane * 4));
      }
      ptx::copy_commit();
    }
    const auto finish = [&](int b) {
      if (id + b * stride >= pieces) return;
      ptx::sync_warp();  // all lanes have the sources
      const M* sources = reinterpret_cast<const M*>(memory.ring[b * kGroups]);
#pragma unroll
      for (int s = 0; s < kMixShort; ++s) {
        if (s >= m.sources) break;
        add_scaled(sum[b], ptx::broadcast(weight[b], s), load_four(sources + s * 128 + lane * 4));
      }
      const MixPlace place(m, id + b * stride);
      if (lane * 4 < place.numbers) __stcg(quad(m.to[0] + place.at + lane * 4), sum[b]);
      clear_numbers<M>(m, place);
    };
    if constexpr (kAtOnce == 4) {
      ptx::copy_wait<3>();
      finish(0);
      ptx::copy_wait<2>();
      finish(1);
    }
    ptx::copy_wait<1>();
    finish(kAtOnce - 2);
    ptx::copy_wait<0>();
    finish(kAtOnce - 1);
  }
}

// The pieces of all mixtures in turn, `stride` warps side by side. Neighbours take the groups of
// rows of one piece, so that its sources are fetched from memory once.
template <typename M>
__device__ __forceinline__ void mix_pieces(const MixArgs* mixes, int count, int first, int stride,
                                           MixMemory<M>& memory) {
  int id = first;
  for (int i = 0; i < count; ++i) {
    const MixArgs& m = mixes[i];
    const int groups = (m.rows + kMixRows - 1) / kMixRows, pieces = m.count * kMixPieces * groups;
    const int sources = min(kMixSources, m.sources - m.chunk * kMixSources);
    if (m.rows == 1 && m.sources <= kMixShort) {
      mix_short_row(m, id, stride, pieces, memory);
      id += (max(pieces - id, 0) + stride - 1) / stride * stride - pieces;
      continue;
    }
    int loaded = -1;
    for (; id < pieces; id += stride) {
      const int group = id % groups;
      const MixPlace place(m, id / groups);
      if (loaded != place.head * groups + group) {
        loaded = place.head * groups + group;
        load_weights(m, place.head, group * kMixRows, sources, memory);
      }
      if (place.numbers == 0) continue;
      const MixPiece piece{.at = place.at,
                           .numbers = place.numbers,
                           .to = m.to + group * kMixRows,
                           .rows = m.rows - group * kMixRows,
                           .sources = sources,
                           .start = m.start,
                           .add = m.add || m.chunk > 0};
      if (m.rows == 1) mix_numbers<M, 1>(piece, memory);
      else mix_numbers<M, kMixRows>(piece, memory);
      clear_numbers<M>(m, place);
    }
    id -= pieces;
  }
}

template <typename M>
__global__ void __launch_bounds__(kMixWarps * 32) mix_kernel(const __grid_constant__ MixArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  mix_pieces(&args, 1, static_cast<int>(blockIdx.x) * kMixWarps + warp,
             static_cast<int>(gridDim.x) * kMixWarps,
             reinterpret_cast<MixMemory<M>*>(shared)[warp]);
}

}  // namespace mhla::cuda::state
