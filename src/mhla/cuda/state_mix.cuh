// Mixtures of closed summaries, a warp at a time: beside a token, or alone.
#pragma once

#include "mhla/cuda/state_place.cuh"

namespace mhla::cuda::state {

// Shared memory of a warp that mixes. kDepth copies of 512 bytes are on their way at once: of a
// source, or of two that are packed. The sums of kRows rows are in registers.
template <typename M, int kDepth, int kRows>
struct MixMemory {
  using Stored = M;
  static constexpr int kCopies = kDepth, kMostRows = kRows;
  static constexpr int kTogether = 4 / sizeof(M);                 // sources of a copy
  static constexpr int kAtOnce = kDepth * kTogether / kMixShort;  // pieces of a short row
  Chunk ring[kDepth][32];
  float weights[kMixSources][kRows];  // of the rows at hand
  const M* from[kMixSources];
};
template <typename M>
using TwoWarpsMemory = MixMemory<M, 32, 8>;      // where two warps of a thread block mix
using FourWarpsMemory = MixMemory<bf16, 16, 4>;  // and where four do
inline constexpr int kMixBytes = kMixWarps * static_cast<int>(sizeof(TwoWarpsMemory<float>));

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
// so that half a warp copies a packed one; then lanes read what others copied. Copies come in
// batches of a quarter of the ring: one is read while three are on their way.
template <int kRows, typename Memory>
__device__ __forceinline__ void mix_numbers(const MixPiece& piece, Memory& memory) {
  using M = typename Memory::Stored;
  constexpr int kTogether = Memory::kTogether, kLanes = 32 / kTogether;
  constexpr int kBatch = Memory::kCopies / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, copied = lane % kLanes * kChunk<M>;
  const bool copies = copied < piece.numbers, inside = lane * 4 < piece.numbers;
  const int batches = (piece.sources + kBatch * kTogether - 1) / (kBatch * kTogether);
  const auto fetch = [&](int batch) {
    if (batch < batches) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int s = (batch * kBatch + i) * kTogether + lane / kLanes;
        if (copies && s < piece.sources) {
          ptx::copy_async(&memory.ring[batch % 4 * kBatch + i][lane],
                          memory.from[s] + piece.at + copied, true);
        }
      }
    }
    ptx::copy_commit();
  };
  if constexpr (kTogether > 1) ptx::sync_warp();  // the piece before was read
#pragma unroll 1
  for (int batch = 0; batch < 3; ++batch) fetch(batch);
  const std::int64_t at = piece.at + lane * 4;
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (inside && piece.add && r < piece.rows) sum[r] = __ldcg(quad(piece.to[r] + at));
  }
  if (kRows == 1 && inside && piece.start && !piece.add) sum[0] = __ldcg(quad(piece.start + at));
#pragma unroll 1
  for (int batch = 0; batch < batches; ++batch) {
    ptx::copy_wait<2>();
    // All lanes have this batch, and have read the one before, whose place is taken next.
    if constexpr (kTogether > 1) ptx::sync_warp();
    fetch(batch + 3);
    const M* sources = reinterpret_cast<const M*>(memory.ring[batch % 4 * kBatch]);
    const int first = batch * kBatch * kTogether;
#pragma unroll
    for (int i = 0; i < kBatch * kTogether; ++i) {
      if (first + i >= piece.sources) break;
      const float4 x = load_four(sources + i * 128 + lane * 4);
      float w[kRows];
      if constexpr (kRows == 1) {
        w[0] = memory.weights[first + i][0];
      } else {
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          *reinterpret_cast<float4*>(w + r) = load_four(memory.weights[first + i] + r);
        }
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
template <typename Memory>
__device__ __forceinline__ void load_weights(const MixArgs& m, int head, int first_row, int sources,
                                             Memory& memory) {
  using M = typename Memory::Stored;
  const std::int64_t begin = static_cast<std::int64_t>(m.chunk) * kMixSources;
  ptx::sync_warp();  // the weights before these were read
  for (int s = threadIdx.x % 32; s < sources; s += 32) {
    memory.from[s] = static_cast<const M*>(m.from[begin + s]);
#pragma unroll
    for (int r = 0; r < Memory::kMostRows; ++r) {
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

// Pieces `first` to `last` of one row of few sources, the mixture of every step: a piece is hardly
// more than the wait for its sources, so a warp asks for those of several before it waits. Lane s
// knows source s.
template <typename Memory>
__device__ __forceinline__ void mix_short_row(const MixArgs& m, int first, int last,
                                              Memory& memory) {
  using M = typename Memory::Stored;
  constexpr int kTogether = Memory::kTogether, kLanes = 32 / kTogether;
  constexpr int kGroups = kMixShort / kTogether, kAtOnce = Memory::kAtOnce;
  const int lane = static_cast<int>(threadIdx.x) % 32, copied = lane % kLanes * kChunk<M>;
  const bool known = lane < m.sources;
  const auto source = known ? reinterpret_cast<std::uint64_t>(m.from[lane]) : 0;
  float weight[kAtOnce];
  float4 sum[kAtOnce];
  ptx::sync_warp();  // the pieces before were read
#pragma unroll
  for (int b = 0; b < kAtOnce; ++b) {
    weight[b] = 0.f;
    sum[b] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (first + b < last) {
      const MixPlace place(m, first + b);
      if (known) weight[b] = m.weights[place.head * m.sources + lane];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int s = group * kTogether + lane / kLanes;
        const auto from = reinterpret_cast<const M*>(ptx::broadcast(source, s));
        if (s < m.sources && copied < place.numbers) {
          ptx::copy_async(&memory.ring[b * kGroups + group][lane], from + place.at + copied, true);
        }
      }
      const float* begin = m.add ? m.to[0] : m.start;
      if (begin && lane * 4 < place.numbers) sum[b] = __ldcg(quad(begin + place.at + lane * 4));
    }
    ptx::copy_commit();
  }
  const auto finish = [&](int b) {
    if (first + b >= last) return;
    ptx::sync_warp();  // all lanes have the sources
    const M* sources = reinterpret_cast<const M*>(memory.ring[b * kGroups]);
#pragma unroll
    for (int s = 0; s < kMixShort; ++s) {
      if (s >= m.sources) break;
      add_scaled(sum[b], ptx::broadcast(weight[b], s), load_four(sources + s * 128 + lane * 4));
    }
    const MixPlace place(m, first + b);
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

// All mixtures in turn, `stride` warps side by side: a warp takes a group of rows of a piece, or
// several pieces of a short row, which takes about as long. Neighbours take the groups of rows of
// one piece, so that its sources are fetched from memory once.
template <typename Memory>
__device__ __forceinline__ void mix_pieces(const MixArgs* mixes, int count, int first, int stride,
                                           Memory& memory) {
  constexpr int kRows = Memory::kMostRows;
  int id = first;
  for (int i = 0; i < count; ++i) {
    const MixArgs& m = mixes[i];
    const int all = m.count * kMixPieces;
    const bool is_short = m.rows == 1 && m.sources <= kMixShort;
    const int groups = (m.rows + kRows - 1) / kRows;
    const int at_once = all > stride ? Memory::kAtOnce : 1;  // of a short row
    const int tasks = is_short ? (all + at_once - 1) / at_once : all * groups;
    const int sources = min(kMixSources, m.sources - m.chunk * kMixSources);
    int loaded = -1;
    for (; id < tasks; id += stride) {
      if (is_short) {
        mix_short_row(m, id * at_once, min(all, (id + 1) * at_once), memory);
        continue;
      }
      const int group = id % groups;
      const MixPlace place(m, id / groups);
      if (loaded != place.head * groups + group) {
        loaded = place.head * groups + group;
        load_weights(m, place.head, group * kRows, sources, memory);
      }
      if (place.numbers == 0) continue;
      const MixPiece piece{.at = place.at,
                           .numbers = place.numbers,
                           .to = m.to + group * kRows,
                           .rows = m.rows - group * kRows,
                           .sources = sources,
                           .start = m.start,
                           .add = m.add || m.chunk > 0};
      if (m.rows == 1) mix_numbers<1>(piece, memory);
      else mix_numbers<kRows>(piece, memory);
      clear_numbers<typename Memory::Stored>(m, place);
    }
    id -= tasks;
  }
}

template <typename M>
__global__ void __launch_bounds__(kMixWarps * 32) mix_kernel(const __grid_constant__ MixArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  mix_pieces(&args, 1, static_cast<int>(blockIdx.x) * kMixWarps + warp,
             static_cast<int>(gridDim.x) * kMixWarps,
             reinterpret_cast<TwoWarpsMemory<M>*>(shared)[warp]);
}

}  // namespace mhla::cuda::state
