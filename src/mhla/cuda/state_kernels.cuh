// Kernels of a stream: one token, several tokens, mixtures of closed summaries.
//
// A thread block owns some columns of a lane's matrices, so nothing is exchanged between blocks.
// Every block keeps its own copy of z for the same reason.
#pragma once

#include "mhla/cuda/state_args.h"

namespace mhla::cuda::state {

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

template <typename E>
__device__ __forceinline__ void store_output(const StepArgs& a, E* o, float value, float divisor) {
  *o = from_float<E>(divisor == 0.f ? 0.f : a.scale * value / divisor);
}

struct Place {
  int lane, b, h, column;  // first column
  float own, next_weight;
  float *running, *summary, *open, *next;
};

__device__ __forceinline__ Place place_of(const StepArgs& a, int index, int columns) {
  Place p;
  p.lane = index / a.column_blocks;
  p.column = index % a.column_blocks * columns;
  p.b = p.lane / a.heads;
  p.h = p.lane % a.heads;
  p.own = a.per_head ? a.weights[p.h] : a.own;
  p.next_weight = a.per_head ? a.weights[a.heads + p.h] : a.next_weight;
  p.running = a.running + p.lane * a.width;
  p.summary = a.summary + p.lane * a.width;
  p.open = a.open + p.lane * a.open_width;
  p.next = a.next ? a.next + p.lane * a.width : nullptr;
  return p;
}

// Writes z to the copies of the columns of this block.
__device__ __forceinline__ void store_z(const StepArgs& a, const Place& p, int columns,
                                        const float* z) {
  const int last = min(p.column + columns, a.row);
  for (int j = p.column / a.slice; j * a.slice < last; ++j) {
    for (int i = threadIdx.x; i < a.dk; i += kThreads) p.open[j * a.key + i] = z[i];
  }
}

// The denominator's sums of a closing block; only the first columns' block writes them.
__device__ __forceinline__ void close_denominator(const StepArgs& a, const Place& p,
                                                  const float* z) {
  if (p.column != 0 || a.normalizer == 2) return;
  float* den = p.summary + a.den_at;
  if (a.normalizer == 0) {
    for (int i = threadIdx.x; i < a.dk; i += kThreads) den[i] = z[i];
  } else {
    for (int w = threadIdx.x / 32; w < a.block; w += kThreads / 32) {
      const float sum = warp_dot(p.open + a.q_at + static_cast<std::int64_t>(w) * a.key, z, a.dk);
      if (threadIdx.x % 32 == 0) den[w] = sum;
    }
  }
  __syncthreads();
  if (!p.next) return;
  for (int i = threadIdx.x; i < a.den_width; i += kThreads) {
    p.next[a.den_at + i] = fmaf(p.next_weight, den[i], p.next[a.den_at + i]);
  }
}

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

// Several tokens of the open block. A thread block owns kChunkColumns columns of R, in shared
// memory, and of S, in global memory, and walks through the tokens a few at a time.
template <typename E>
struct TokensBlock {
  const StepArgs& a;
  const Place p;
  int columns, n, pitch;
  float *q, *k, *v, *r, *scores, *z, *prefix, *dens;

  __device__ TokensBlock(const StepArgs& args, float* shared)
      : a(args), p(place_of(args, blockIdx.x, kChunkColumns)) {
    columns = min(kChunkColumns, a.row - p.column);
    n = a.tokens_at_once;
    pitch = a.key + 1;  // rows of q and k begin in different banks
    const auto part = [&](int count) {
      float* at = shared;
      shared += count;
      return at;
    };
    r = part(a.dk * kChunkColumns);
    v = part(n * kChunkColumns);
    q = part(n * pitch);
    k = part(n * pitch);
    scores = part(n * (n + 1));
    z = part(a.key);
    prefix = part(a.key);
    dens = part(n);
  }

  __device__ void load(const Rows& rows, int first, int count, float* to) const {
    for (int t = threadIdx.x / 32; t < count; t += kThreads / 32) {
      const E* row = row_of<E>(rows, p.b, first + t, p.h);
#pragma unroll 4
      for (int c = threadIdx.x % 32; c < a.dk; c += 32) {
        to[t * pitch + c] = phi(a.map, to_float(row[c]));
      }
    }
  }
  __device__ void load_values(int first, int count) const {
    for (int i = threadIdx.x; i < count * kChunkColumns; i += kThreads) {
      const int t = i / kChunkColumns, c = p.column + i % kChunkColumns;
      v[i] = c < a.dv ? to_float(row_of<E>(a.v, p.b, first + t, p.h)[c]) : 0.f;
    }
  }

  // Matrices into shared memory, with the tokens that their slices had not taken up.
  __device__ void begin() const {
    const int oldest = max(a.base, a.fill - kFold);
    for (int i = threadIdx.x; i < a.dk * kChunkColumns; i += kThreads) {
      const int c = i / kChunkColumns, at = p.column + i % kChunkColumns;
      float delta = 0.f, rr = 0.f;
      if (at < a.row) {
        const int from = level(a, at / a.slice, a.fill);
        for (int u = max(from, oldest); u < a.fill; ++u) {
          const int slot = u % kFold;
          delta = fmaf(p.open[a.ring_k_at + slot * a.key + c],
                       p.open[a.ring_v_at + slot * a.row + at], delta);
        }
        rr = p.running[static_cast<std::int64_t>(c) * a.row + at];
        if (from < a.fill) p.summary[static_cast<std::int64_t>(c) * a.row + at] += delta;
      }
      r[i] = fmaf(p.own, delta, rr);
    }
    if (a.normalizer != 2) {
      for (int i = threadIdx.x; i < a.dk; i += kThreads) {
        z[i] = a.fill > 0 ? p.open[p.column / a.slice * a.key + i] : 0.f;
        if (a.normalizer == 0) prefix[i] = p.running[a.den_at + i];
      }
    }
    __syncthreads();
  }

  // S += K^T V and R likewise.
  __device__ void absorb(int count) const {
    for (int i = threadIdx.x; i < a.dk * kChunkColumns / 4; i += kThreads) {
      const int c = i / (kChunkColumns / 4), at = i % (kChunkColumns / 4) * 4;
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
      for (int t = 0; t < count; ++t) {
        const float w = k[t * pitch + c];
        const float4 x = *reinterpret_cast<const float4*>(v + t * kChunkColumns + at);
        sum = make_float4(fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z),
                          fmaf(w, x.w, sum.w));
      }
      float4* rr = reinterpret_cast<float4*>(r + c * kChunkColumns + at);
      if (p.column + at < a.row) {
        float4* total = reinterpret_cast<float4*>(p.summary + static_cast<std::int64_t>(c) * a.row +
                                                  p.column + at);
        const float4 x = *total;
        *total = make_float4(x.x + sum.x, x.y + sum.y, x.z + sum.z, x.w + sum.w);
      }
      *rr = make_float4(fmaf(p.own, sum.x, rr->x), fmaf(p.own, sum.y, rr->y),
                        fmaf(p.own, sum.z, rr->z), fmaf(p.own, sum.w, rr->w));
    }
  }

  // scores[t][u] = q_t . k_u, 4 x 4 of them a thread.
  __device__ void multiply_scores(int count) const {
    const int across = (n + 3) / 4;
    for (int i = threadIdx.x; i < across * across; i += kThreads) {
      const int t0 = i / across * 4, u0 = i % across * 4;
      if (u0 > t0 + 3 || t0 >= count) continue;  // above the diagonal
      float sum[4][4] = {};
      for (int c = 0; c < a.dk; ++c) {
        float x[4], y[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[j] = q[(t0 + j) * pitch + c];
          y[j] = k[(u0 + j) * pitch + c];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int l = 0; l < 4; ++l) sum[j][l] = fmaf(x[j], y[l], sum[j][l]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int l = 0; l < 4; ++l) scores[(t0 + j) * (n + 1) + u0 + l] = sum[j][l];
      }
    }
  }

  // Denominators of the tokens; q and k hold those of the denominator. z becomes up to date.
  __device__ void read_denominators(int done, int count) const {
    if (!a.block_causal) multiply_scores(count);
    __syncthreads();
    const int warp = threadIdx.x / 32;
    for (int t = warp; t < count; t += kThreads / 32) {
      float own = warp_dot(q + t * pitch, z, a.dk);
      if (!a.block_causal) {
        float sum = 0.f;
        for (int u = threadIdx.x % 32; u <= t; u += 32) sum += scores[t * (n + 1) + u];
        own += ptx::sum_of_warp(sum);
      }
      const float before = a.normalizer == 0 ? warp_dot(q + t * pitch, prefix, a.dk)
                                             : p.running[a.den_at + a.fill + done + t];
      if (threadIdx.x % 32 == 0) dens[t] = a.scale * (before + p.own * own) + a.eps;
    }
    __syncthreads();
  }
  // z += the sum of the keys; queries are kept for shared_position.
  __device__ void absorb_den(int done, int count) const {
    for (int c = threadIdx.x; c < a.dk; c += kThreads) {
      for (int t = 0; t < count; ++t) z[c] += k[t * pitch + c];
    }
    if (a.normalizer == 1 && p.column == 0) {
      for (int i = threadIdx.x; i < count * a.dk; i += kThreads) {
        const int t = i / a.dk, c = i % a.dk;
        p.open[a.q_at + static_cast<std::int64_t>(a.fill + done + t) * a.key + c] =
            q[t * pitch + c];
      }
    }
    __syncthreads();
  }

  // q R, and for causal the triangle of this chunk; two tokens by four columns a thread.
  __device__ void write(int first, int count) const {
    constexpr int kAcross = kChunkColumns / 4;
    for (int i = threadIdx.x; i < (count + 1) / 2 * kAcross; i += kThreads) {
      const int t0 = i / kAcross * 2, at = i % kAcross * 4;
      const int t1 = t0 + 1 < count ? t0 + 1 : t0;
      float sum[2][4] = {};
      const auto add = [&](float w0, float w1, const float4& x) {
        const float y[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[0][j] = fmaf(w0, y[j], sum[0][j]);
          sum[1][j] = fmaf(w1, y[j], sum[1][j]);
        }
      };
      for (int c = 0; c < a.dk; ++c) {
        add(q[t0 * pitch + c], q[t1 * pitch + c],
            *reinterpret_cast<const float4*>(r + c * kChunkColumns + at));
      }
      if (!a.block_causal) {
        for (int u = 0; u <= t1; ++u) {
          const float w0 = u <= t0 ? p.own * scores[t0 * (n + 1) + u] : 0.f;
          add(w0, p.own * scores[t1 * (n + 1) + u],
              *reinterpret_cast<const float4*>(v + u * kChunkColumns + at));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = t0 + half;
        if (t >= count) break;
        E* o = const_cast<E*>(row_of<E>(a.o, p.b, first + t, p.h));
        const float divisor = a.normalizer == 2 ? 1.f : dens[t];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int c = p.column + at + j;
          if (c < a.dv) store_output(a, o + c, sum[half][j], divisor);
        }
      }
    }
  }

  __device__ void read_chunk(int done, int count) const {
    const bool divides = a.normalizer != 2;
    if (divides && a.separate) {
      load(a.q_den, done, count, q);
      load(a.k_den, done, count, k);
      __syncthreads();
      read_denominators(done, count);
      absorb_den(done, count);
    }
    load(a.q, done, count, q);
    load(a.k, done, count, k);
    load_values(done, count);
    __syncthreads();
    if (divides && !a.separate) {
      read_denominators(done, count);
      absorb_den(done, count);
    } else {
      multiply_scores(count);
      __syncthreads();
    }
    write(done, count);
    __syncthreads();
    absorb(count);
    __syncthreads();
  }

  // block_causal: the whole block first, then every token reads all of it.
  __device__ void absorb_chunk(int done, int count) const {
    load(a.k, done, count, k);
    load_values(done, count);
    __syncthreads();
    absorb(count);
    __syncthreads();
    if (a.normalizer == 2) return;
    load(a.separate ? a.q_den : a.q, done, count, q);
    if (a.separate) load(a.k_den, done, count, k);
    __syncthreads();
    absorb_den(done, count);
  }
  __device__ void write_chunk(int done, int count) const {
    if (a.normalizer != 2) {
      load(a.separate ? a.q_den : a.q, done, count, q);
      __syncthreads();
      read_denominators(done, count);
    }
    load(a.q, done, count, q);
    __syncthreads();
    write(done, count);
    __syncthreads();
  }

  __device__ void end() const {
    for (int i = threadIdx.x; i < a.dk * kChunkColumns; i += kThreads) {
      const int c = i / kChunkColumns, at = p.column + i % kChunkColumns;
      if (at >= a.row) continue;
      const std::int64_t offset = static_cast<std::int64_t>(c) * a.row + at;
      if (!a.closes) p.running[offset] = r[i];
      else if (p.next) p.next[offset] = fmaf(p.next_weight, p.summary[offset], p.next[offset]);
    }
    if (a.normalizer != 2) store_z(a, p, kChunkColumns, z);
    if (a.closes) close_denominator(a, p, z);
  }
};

template <typename E>
__global__ void __launch_bounds__(kThreads) tokens_kernel(const __grid_constant__ StepArgs args) {
  extern __shared__ float4 shared[];
  const TokensBlock<E> block(args, reinterpret_cast<float*>(shared));
  block.begin();
  const int n = args.tokens_at_once;
  if (args.block_causal) {
    for (int done = 0; done < args.count; done += n) {
      block.absorb_chunk(done, min(n, args.count - done));
    }
    for (int done = 0; done < args.count; done += n) {
      block.write_chunk(done, min(n, args.count - done));
    }
  } else {
    for (int done = 0; done < args.count; done += n) {
      block.read_chunk(done, min(n, args.count - done));
    }
  }
  block.end();
}

}  // namespace mhla::cuda::state
