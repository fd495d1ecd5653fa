// What kernels of a stream share: where a thread block works, and the sums of the denominator.
//
// A thread block owns some columns of a lane's matrices, so nothing is exchanged between blocks.
// Every block keeps its own copy of z for the same reason.
#pragma once

#include "mhla/cuda/state_args.h"

namespace mhla::cuda::state {

// A barrier of the threads that read tokens: other warps of the thread block may mix.
__device__ __forceinline__ void sync_tokens() { ptx::sync_warps(1, kThreads); }

template <typename E>
__device__ __forceinline__ const E* row_of(const Rows& rows, int b, std::int64_t t, int h) {
  return static_cast<const E*>(rows.data) + b * rows.batch + t * rows.token + h * rows.head;
}

__device__ __forceinline__ float phi(const Map& map, float x) {
  if (map.elu1) return x > 0.f ? x + 1.f : expf(x);
  return (x < map.floor ? map.floor : x) + map.add;  // NaN stays NaN
}

// Setup::level.
__device__ __forceinline__ int level(const StepArgs& a, int j, int fill) {
  const int behind = (fill - a.phase[j]) & (kFold - 1);
  return max(fill - behind, a.base);
}

__device__ __forceinline__ float warp_dot(const float* a, const float* b, int count) {
  float sum = 0.f;
  for (int i = threadIdx.x % 32; i < count; i += 32) sum = fmaf(a[i], b[i], sum);
  return ptx::sum_of_warp(sum);
}

// Four numbers as they are stored. NOTE: packed ones are moved as one word; of a struct of two the
// compiler makes two accesses.
__device__ __forceinline__ std::uint64_t pack_four(const float4& x) {
  return ptx::pack_bf16(x.x, x.y) | static_cast<std::uint64_t>(ptx::pack_bf16(x.z, x.w)) << 32;
}
__device__ __forceinline__ float4 unpack_four(std::uint64_t x) {
  const auto low = static_cast<std::uint32_t>(x), high = static_cast<std::uint32_t>(x >> 32);
  return make_float4(__uint_as_float(low << 16), __uint_as_float(low & 0xffff0000u),
                     __uint_as_float(high << 16), __uint_as_float(high & 0xffff0000u));
}
template <typename M>
__device__ __forceinline__ float4 load_four(const M* p) {
  if constexpr (sizeof(M) == 4) return *reinterpret_cast<const float4*>(p);
  else return unpack_four(*reinterpret_cast<const std::uint64_t*>(p));
}
template <typename M>
__device__ __forceinline__ void store_four(M* p, const float4& x) {
  if constexpr (sizeof(M) == 4) *reinterpret_cast<float4*>(p) = x;
  else *reinterpret_cast<std::uint64_t*>(p) = pack_four(x);
}
template <typename M>
__device__ __forceinline__ float4 as_stored(const float4& x) {
  if constexpr (sizeof(M) == 4) return x;
  else return unpack_four(pack_four(x));
}

__device__ __forceinline__ void add_scaled(float4& sum, float w, const float4& x) {
  sum = make_float4(fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z),
                    fmaf(w, x.w, sum.w));
}

template <typename E>
__device__ __forceinline__ void store_output(const StepArgs& a, E* o, float value, float divisor) {
  *o = from_float<E>(divisor == 0.f ? 0.f : a.scale * value / divisor);
}

// M: what summaries, R and the ring are stored as.
template <typename M>
struct Place {
  int lane, b, h, column;  // first column
  float own, next_weight;
  M *running, *summary, *ring, *started;
  float* open;
  const float* next;
};

template <typename M>
__device__ __forceinline__ Place<M> place_of(const StepArgs& a, int index, int columns) {
  Place<M> p;
  p.lane = index / a.column_blocks;
  p.column = index % a.column_blocks * columns;
  p.b = p.lane / a.heads;
  p.h = p.lane % a.heads;
  p.own = a.per_head ? a.weights[p.h] : a.own;
  p.next_weight = a.per_head ? a.weights[a.heads + p.h] : a.next_weight;
  p.running = static_cast<M*>(a.running) + p.lane * a.width;
  p.summary = static_cast<M*>(a.summary) + p.lane * a.width;
  p.ring = static_cast<M*>(a.ring) + p.lane * a.ring_width;
  p.started = static_cast<M*>(a.started) + p.lane * a.width;
  p.open = a.open + p.lane * a.open_width;
  p.next = a.next ? a.next + p.lane * a.width : nullptr;
  return p;
}

// Writes z to the copies of the columns of this block.
template <typename M>
__device__ __forceinline__ void store_z(const StepArgs& a, const Place<M>& p, int columns,
                                        const float* z) {
  const int last = min(p.column + columns, a.row);
  for (int j = p.column / a.slice; j * a.slice < last; ++j) {
    for (int i = threadIdx.x; i < a.dk; i += kThreads) p.open[j * a.key + i] = z[i];
  }
}

// The denominator's sums of a closing block; only the first columns' block writes them.
template <typename M>
__device__ __forceinline__ void close_denominator(const StepArgs& a, const Place<M>& p,
                                                  const float* z) {
  if (p.column != 0 || a.normalizer == 2) return;
  M* den = p.summary + a.den_at;
  if (a.normalizer == 0) {
    for (int i = threadIdx.x; i < a.dk; i += kThreads) den[i] = from_float<M>(z[i]);
  } else {
    for (int w = threadIdx.x / 32; w < a.block; w += kThreads / 32) {
      const float sum = warp_dot(p.open + a.q_at + static_cast<std::int64_t>(w) * a.key, z, a.dk);
      if (threadIdx.x % 32 == 0) den[w] = from_float<M>(sum);
    }
  }
  sync_tokens();
  if (!p.next) return;
  for (int i = threadIdx.x; i < a.den_width; i += kThreads) {
    p.started[a.den_at + i] = from_float<M>(
        fmaf(p.next_weight, to_float(den[i]), p.next[a.den_at + i]));
  }
}

}  // namespace mhla::cuda::state
