// Several tokens of the open block.
#pragma once

#include "mhla/cuda/state_place.cuh"

namespace mhla::cuda::state {

// Several tokens of the open block. A thread block owns kChunkColumns columns of R, in shared
// memory, and of S, in global memory, and walks through the tokens a few at a time.
template <typename E, typename M>
struct TokensBlock {
  const StepArgs& a;
  const Place<M> p;
  int columns, n, pitch;
  float *q, *k, *v, *r, *scores, *z, *prefix, *dens;

  __device__ TokensBlock(const StepArgs& args, float* shared)
      : a(args), p(place_of<M>(args, blockIdx.x, kChunkColumns)) {
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
          delta = fmaf(to_float(p.ring[slot * a.key + c]),
                       to_float(p.ring[a.ring_v_at + slot * a.row + at]), delta);
        }
        const std::int64_t offset = static_cast<std::int64_t>(c) * a.row + at;
        rr = to_float(p.running[offset]);
        if (from < a.fill) p.summary[offset] = from_float<M>(to_float(p.summary[offset]) + delta);
      }
      r[i] = fmaf(p.own, delta, rr);
    }
    if (a.normalizer != 2) {
      for (int i = threadIdx.x; i < a.dk; i += kThreads) {
        z[i] = a.fill > 0 ? p.open[p.column / a.slice * a.key + i] : 0.f;
        if (a.normalizer == 0) prefix[i] = to_float(p.running[a.den_at + i]);
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
        M* total = p.summary + static_cast<std::int64_t>(c) * a.row + p.column + at;
        const float4 x = load_four(total);
        store_four(total, make_float4(x.x + sum.x, x.y + sum.y, x.z + sum.z, x.w + sum.w));
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
                                             : to_float(p.running[a.den_at + a.fill + done + t]);
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
      if (!a.closes) {
        p.running[offset] = from_float<M>(r[i]);
      } else if (p.next) {
        p.started[offset] = from_float<M>(
            fmaf(p.next_weight, to_float(p.summary[offset]), p.next[offset]));
      }
    }
    if (a.normalizer != 2) store_z(a, p, kChunkColumns, z);
    if (a.closes) close_denominator(a, p, z);
  }
};

template <typename E, typename M>
__global__ void __launch_bounds__(kThreads) tokens_kernel(const __grid_constant__ StepArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const TokensBlock<E, M> block(args, reinterpret_cast<float*>(shared));
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
