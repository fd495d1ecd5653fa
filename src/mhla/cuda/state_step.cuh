// One token, and mixtures of closed summaries beside it.
#pragma once

#include "mhla/cuda/state_place.cuh"

namespace mhla::cuda::state {

template <int kRows>
__device__ __forceinline__ void mix_item(const MixArgs& m, int slab, const float* const* from,
                                         const float* weights, int sources) {
  const int lane = slab / m.slabs_per_lane;
  const std::int64_t in_lane = static_cast<std::int64_t>(slab % m.slabs_per_lane) * kMixSlab +
                               threadIdx.x * 4;
  if (in_lane >= m.width) return;
  const std::int64_t at = lane * m.width + in_lane;
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (m.chunk > 0 && r < m.rows) sum[r] = *reinterpret_cast<const float4*>(m.to[r] + at);
  }
#pragma unroll 4
  for (int s = 0; s < sources; ++s) {
    const float4 x = *reinterpret_cast<const float4*>(from[s] + at);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float w = weights[r * kMixSources + s];
      sum[r] = make_float4(fmaf(w, x.x, sum[r].x), fmaf(w, x.y, sum[r].y), fmaf(w, x.z, sum[r].z),
                           fmaf(w, x.w, sum[r].w));
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < m.rows) *reinterpret_cast<float4*>(m.to[r] + at) = sum[r];
  }
  if (m.clear && m.chunk == 0) {
    *reinterpret_cast<float4*>(m.clear + at) = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

__device__ __forceinline__ void mix(const MixArgs& m, int index) {
  __shared__ float weights[kMixRows * kMixSources];
  __shared__ const float* from[kMixSources];
  const int slab = m.first + index, begin = m.chunk * kMixSources;
  const int sources = min(kMixSources, m.sources - begin);
  const int head = m.per_head ? slab / m.slabs_per_lane % m.heads : 0;
  for (int i = threadIdx.x; i < kMixRows * kMixSources; i += kThreads) {
    const int r = i / kMixSources, s = i % kMixSources;
    const bool valid = r < m.rows && s < sources;
    weights[i] =
        valid ? m.weights[(static_cast<std::int64_t>(head) * m.rows + r) * m.sources + begin + s]
              : 0.f;
    if (r == 0 && s < sources) from[s] = m.from[begin + s];
  }
  __syncthreads();
  if (m.rows == 1) mix_item<1>(m, slab, from, weights, sources);
  else mix_item<kMixRows>(m, slab, from, weights, sources);
}

// One token. The outputs read the matrices as they were and add the last tokens from the ring; then
// the slice whose turn it is takes up its tokens. Token u of the block is in slot u % kFold.
template <typename E>
__device__ __forceinline__ void step(const StepArgs& a, int index, float* shared) {
  const Place p = place_of(a, index, a.columns);
  const int columns = min(a.columns, a.row - p.column), tid = threadIdx.x;
  const int t = a.fill, fill = t + 1;
  const int oldest = max(a.base, fill - kFold);  // whom anybody may need
  const int slot = t % kFold;

  float* q = shared;                                          // [key]
  float* q_den = q + a.key;                                   // [key]
  float* z = q_den + a.key;                                   // [key]
  float* k = z + a.key;                                       // [kFold, key]
  float* v = k + kFold * a.key;                               // [kFold, columns]
  float* scores = v + kFold * a.columns;                      // [kFold]
  float* dens = scores + kFold;                               // [2]
  float4* partial = reinterpret_cast<float4*>(dens + kFold);  // [kThreads]

  // The first rows of R are on their way while the token is prepared.
  const int across = a.columns / 4, shift = __ffs(across) - 1;
  const int group = tid >> shift, groups = kThreads >> shift, c4 = (tid & (across - 1)) * 4;
  const bool inside = c4 < columns;
  constexpr int kAhead = 8;
  float4 ahead[kAhead];
  const float* matrix = p.running + p.column + c4;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int c = group + i * groups;
    ahead[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (inside && c < a.dk) ahead[i] = *reinterpret_cast<const float4*>(matrix + c * a.row);
  }

  // The ring as it lies, stale slots included; the token itself replaces one of them.
  const float4* ring_k = reinterpret_cast<const float4*>(p.open + a.ring_k_at);
  const int quads = a.key / 4;
  for (int i = tid; i < kFold * quads; i += kThreads) reinterpret_cast<float4*>(k)[i] = ring_k[i];
  if (inside) {
    for (int u = group; u < kFold; u += groups) {
      *reinterpret_cast<float4*>(v + u * a.columns + c4) = *reinterpret_cast<const float4*>(
          p.open + a.ring_v_at + u * a.row + p.column + c4);
    }
  }
  const E* q_in = row_of<E>(a.q, p.b, 0, p.h);
  const E* k_in = row_of<E>(a.k, p.b, 0, p.h);
  const E* v_in = row_of<E>(a.v, p.b, 0, p.h);
  const bool divides = a.normalizer != 2;
  float new_k[2], new_v = 0.f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // dk is at most 2 * kThreads
    const int c = tid + i * kThreads;
    if (c >= a.dk) continue;
    new_k[i] = phi(a.map, to_float(k_in[c]));
    q[c] = phi(a.map, to_float(q_in[c]));
    if (!divides) continue;
    const float kd = a.separate ? phi(a.map, to_float(row_of<E>(a.k_den, p.b, 0, p.h)[c]))
                                : new_k[i];
    const float qd = a.separate ? phi(a.map, to_float(row_of<E>(a.q_den, p.b, 0, p.h)[c])) : q[c];
    q_den[c] = qd;
    z[c] = kd + (t > 0 ? p.open[p.column / a.slice * a.key + c] : 0.f);
    if (a.normalizer == 1 && p.column == 0) {
      p.open[a.q_at + static_cast<std::int64_t>(t) * a.key + c] = qd;
    }
  }
  if (tid < columns && p.column + tid < a.dv) new_v = to_float(v_in[p.column + tid]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int c = tid + i * kThreads;
    if (c >= a.dk) continue;
    k[slot * a.key + c] = new_k[i];
    if (p.column == 0) p.open[a.ring_k_at + slot * a.key + c] = new_k[i];
  }
  if (tid < columns) {
    v[slot * a.columns + tid] = new_v;
    p.open[a.ring_v_at + slot * a.row + p.column + tid] = new_v;
  }
  __syncthreads();

  // Scores by warps, and the part of every row group in q R.
  for (int u = tid / 32; u < kFold + (divides ? 2 : 0); u += kThreads / 32) {
    float sum = 0.f;
    if (u < kFold) sum = warp_dot(q, k + u * a.key, a.dk);
    else if (u == kFold) sum = warp_dot(q_den, z, a.dk);
    else if (a.normalizer == 0) sum = warp_dot(q_den, p.running + a.den_at, a.dk);
    else sum = p.running[a.den_at + t];
    if (tid % 32 == 0) scores[u] = sum;  // dens behind them
  }
  if (divides) store_z(a, p, a.columns, z);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  const auto add = [&](float w, const float4& x) {
    sum = make_float4(fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z),
                      fmaf(w, x.w, sum.w));
  };
  if (inside) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = group + i * groups;
      if (c < a.dk) add(q[c], ahead[i]);
    }
#pragma unroll 8
    for (int c = group + kAhead * groups; c < a.dk; c += groups) {
      add(q[c], *reinterpret_cast<const float4*>(matrix + c * a.row));
    }
  }
  __syncthreads();

  if (inside) {
    const int from = max(oldest, level(a, (p.column + c4) / a.slice, t));
    for (int u = from + group; u < fill; u += groups) {
      const int at = u & (kFold - 1);
      add(p.own * scores[at], *reinterpret_cast<const float4*>(v + at * a.columns + c4));
    }
  }
  partial[tid] = sum;
  __syncthreads();

  if (tid < columns) {
    const float* parts = reinterpret_cast<const float*>(partial) + tid;
    float total = 0.f;
    for (int g = 0; g < groups; ++g) total += parts[g * a.columns];
    float divisor = 1.f;
    if (divides) divisor = a.scale * (dens[1] + p.own * dens[0]) + a.eps;
    E* o = const_cast<E*>(row_of<E>(a.o, p.b, 0, p.h)) + p.column + tid;
    if (p.column + tid < a.dv) store_output(a, o, total, divisor);
  }

  // Slices take up their tokens: the one whose turn it is, or all when the block closes.
  const int slice_shift = __ffs(a.slice / 4) - 1;
  for (int s = 0; s * a.slice < columns; ++s) {
    const int j = p.column / a.slice + s;
    if (!a.closes && level(a, j, fill) != fill) continue;
    const int from = max(oldest, level(a, j, t));
    for (int i = tid; i < a.dk << slice_shift; i += kThreads) {
      const int c = i >> slice_shift, at = s * a.slice + (i & ((1 << slice_shift) - 1)) * 4;
      if (at >= columns) continue;
      const std::int64_t offset = static_cast<std::int64_t>(c) * a.row + p.column + at;
      float4* total = reinterpret_cast<float4*>(p.summary + offset);
      float* to = a.closes ? p.next : p.running;
      float4 x = *total, y = make_float4(0.f, 0.f, 0.f, 0.f);
      if (to) y = *reinterpret_cast<const float4*>(to + offset);
      float4 delta = make_float4(0.f, 0.f, 0.f, 0.f);
      const auto take = [&](int slot) {
        const float w = k[slot * a.key + c];
        const float4 d = *reinterpret_cast<const float4*>(v + slot * a.columns + at);
        delta = make_float4(fmaf(w, d.x, delta.x), fmaf(w, d.y, delta.y), fmaf(w, d.z, delta.z),
                            fmaf(w, d.w, delta.w));
      };
      if (fill - from == kFold) {
#pragma unroll
        for (int u = 0; u < kFold; ++u) take(u);
      } else {
        for (int u = from; u < fill; ++u) take(u & (kFold - 1));
      }
      x = make_float4(x.x + delta.x, x.y + delta.y, x.z + delta.z, x.w + delta.w);
      *total = x;
      if (!to) continue;
      const float w = a.closes ? p.next_weight : p.own;
      if (!a.closes) x = delta;
      *reinterpret_cast<float4*>(to + offset) = make_float4(fmaf(w, x.x, y.x), fmaf(w, x.y, y.y),
                                                            fmaf(w, x.z, y.z), fmaf(w, x.w, y.w));
    }
  }
  if (a.closes) close_denominator(a, p, z);
}

// Mixtures first: they have the longest way to go.
template <typename E>
__global__ void __launch_bounds__(kThreads, 3) step_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ float4 shared[];
  ptx::begin_after_previous();
  int index = static_cast<int>(blockIdx.x);
  if (index < call.mix[0].count) return mix(call.mix[0], index);
  index -= call.mix[0].count;
  if (index < call.mix[1].count) return mix(call.mix[1], index);
  step<E>(call.step, index - call.mix[1].count, reinterpret_cast<float*>(shared));
}

__global__ void __launch_bounds__(kThreads) mix_kernel(const __grid_constant__ MixArgs args) {
  mix(args, static_cast<int>(blockIdx.x));
}

}  // namespace mhla::cuda::state
