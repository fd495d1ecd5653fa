// One token, and mixtures of closed summaries beside it.
//
// A thread block reads the token into some columns of a lane with its first kThreads threads; the
// warps behind them mix. All thread blocks are resident at once on a large GPU, so that everything
// a step reads is on its way from the start.
#pragma once

#include "mhla/cuda/state_mix.cuh"
#include "mhla/cuda/state_place.cuh"

namespace mhla::cuda::state {

// Shared memory of the token, in floats.
struct StepMemory {
  float *q, *z;    // [key]
  float* k;        // [kFold, key], as the ring lies
  float* v;        // [kFold, columns]
  float* scores;   // [kFold]
  float* dens;     // [2], behind them
  float* partial;  // [warps, columns]
  float4* held;    // [2 kHeld, kThreads]: pieces of the slices, each thread's own

  __device__ StepMemory(const StepArgs& a, float* shared) {
    q = shared;
    z = q + a.key;
    k = z + a.key;
    v = k + kFold * a.key;
    scores = v + kFold * a.columns;
    dens = scores + kFold;
    partial = scores + 2 * kFold;
    held = reinterpret_cast<float4*>(partial + kThreads / 32 * a.columns) + threadIdx.x;
  }
};
inline constexpr int kHeld = 2;  // pieces of a slice that a thread asks for at the start
constexpr int step_floats(int key, int columns) {
  return (2 + kFold) * key + (kFold + kThreads / 32) * columns + 2 * kFold + 8 * kHeld * kThreads;
}

// phi of columns c to c + 3 of a row; zero past the width.
template <typename E>
__device__ __forceinline__ float4 phi_quad(const StepArgs& a, const E* row, int c) {
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = c + i < a.dk ? phi(a.map, to_float(row[c + i])) : 0.f;
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ float dot(const float4& a, const float4& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__device__ __forceinline__ void add_scaled(float4& sum, float w, const float4& x) {
  sum = make_float4(fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z),
                    fmaf(w, x.w, sum.w));
}
__device__ __forceinline__ float4 quad(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

// Keys of the last tokens on their way to shared memory, two for each warp. A lane copies what it
// will read itself.
constexpr int kKeysEach = kFold / (kThreads / 32);
template <typename F>
__device__ __forceinline__ void for_each_key(const StepArgs& a, F&& f) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int c = static_cast<int>(threadIdx.x) % 32 * 4; c < a.key; c += 128) {
#pragma unroll
    for (int i = 0; i < kKeysEach; ++i) f(c, i, (warp + i * (kThreads / 32)) * a.key + c);
  }
}
__device__ __forceinline__ void start_keys(const StepArgs& a, const Place& p, const StepMemory& m) {
  const int slot = a.fill % kFold, warp = static_cast<int>(threadIdx.x) / 32;
  for_each_key(a, [&](int, int i, int at) {
    if (slot == warp + i * (kThreads / 32)) return;  // this token's own
    ptx::copy_async(m.k + at, p.open + a.ring_k_at + at, true);
  });
}

// This token's key among them, and the scores of all.
template <typename E>
__device__ __forceinline__ void read_keys(const StepArgs& a, const Place& p, const StepMemory& m) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int slot = a.fill % kFold;
  const E* k_in = row_of<E>(a.k, p.b, 0, p.h);
  float sums[kKeysEach] = {};
  for_each_key(a, [&](int c, int i, int at) {
    if (slot == warp + i * (kThreads / 32)) {
      const float4 k = phi_quad(a, k_in, c);
      *reinterpret_cast<float4*>(m.k + at) = k;
      if (p.column == 0) *reinterpret_cast<float4*>(p.open + a.ring_k_at + at) = k;
    }
    sums[i] += dot(quad(m.q + c), quad(m.k + at));
  });
#pragma unroll
  for (int i = 0; i < kKeysEach; ++i) {
    sums[i] = ptx::sum_of_warp(sums[i]);
    if (lane == 0) m.scores[warp + i * (kThreads / 32)] = sums[i];
  }
}

// z with this token's key, q_den . z and q_den . (what the blocks before give), by one warp each.
template <typename E>
__device__ __forceinline__ void read_denominator(const StepArgs& a, const Place& p,
                                                 const StepMemory& m) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warp > 1) return;
  const E* q_in = row_of<E>(a.separate ? a.q_den : a.q, p.b, 0, p.h);
  const E* k_in = row_of<E>(a.separate ? a.k_den : a.k, p.b, 0, p.h);
  float sum = 0.f;
  for (int c = lane; c < a.dk; c += 32) {
    const float q = phi(a.map, to_float(q_in[c]));
    if (warp == 0) {
      float z = phi(a.map, to_float(k_in[c]));
      if (a.fill > 0) z += p.open[p.column / a.slice * a.key + c];
      m.z[c] = z;
      sum = fmaf(q, z, sum);
      if (a.normalizer == 1 && p.column == 0) {
        p.open[a.q_at + static_cast<std::int64_t>(a.fill) * a.key + c] = q;
      }
    } else if (a.normalizer == 0) {
      sum = fmaf(q, p.running[a.den_at + c], sum);
    }
  }
  sum = ptx::sum_of_warp(sum);
  if (warp == 1 && a.normalizer == 1) sum = p.running[a.den_at + a.fill];
  if (lane == 0) m.dens[warp] = sum;
}

// A slice of S and of R (of the next block's prefix when the block closes) as it was.
struct SlicePiece {
  float4 total, target;
};

// Slices take up their tokens.
struct TakeUp {
  const StepArgs& a;
  const Place& p;
  int columns, shift, first, last, oldest;  // shift: quads of a slice's row

  __device__ TakeUp(const StepArgs& args, const Place& place, int width)
      : a(args), p(place), columns(width), shift(args.slice == 16 ? 2 : 3) {
    const int begin = p.column / a.slice, end = begin + (columns + a.slice - 1) / a.slice;
    first = max(a.due_first, begin);
    last = min(a.due_last, end);
    oldest = max(a.base, a.fill + 1 - kFold);
  }
  __device__ int pieces() const { return a.dk << shift; }
  __device__ float* target() const { return a.closes ? p.next : p.running; }
  __device__ int column_of(int j, int i) const {  // in the thread block
    return j * a.slice - p.column + (i & ((1 << shift) - 1)) * 4;
  }
  __device__ std::int64_t offset(int j, int i) const {
    return static_cast<std::int64_t>(i >> shift) * a.row + p.column + column_of(j, i);
  }
  __device__ bool inside(int j, int i) const {
    return j < last && i < pieces() && column_of(j, i) < columns;
  }
  template <typename F>
  __device__ void for_each_held(F&& f, const StepMemory& m) const {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * kThreads;
      if (inside(first, i)) f(i, m.held + 2 * n * kThreads);
    }
  }
  // Starts the copies of the first pieces; they are there after a wait.
  __device__ void hold(const StepMemory& m) const {
    for_each_held(
        [&](int i, float4* held) {
          ptx::copy_async(held, p.summary + offset(first, i), true);
          if (target()) ptx::copy_async(held + kThreads, target() + offset(first, i), true);
        },
        m);
  }
  __device__ SlicePiece load(int j, int i) const {
    SlicePiece piece{};
    piece.total = quad(p.summary + offset(j, i));
    if (target()) piece.target = quad(target() + offset(j, i));
    return piece;
  }
  // Stores S; what R (or the next prefix) becomes is left in piece.target.
  __device__ void absorb(int j, int i, SlicePiece& piece, const StepMemory& m) const {
    const int c = i >> shift, at = column_of(j, i), fill = a.fill + 1;
    float4 delta = make_float4(0.f, 0.f, 0.f, 0.f);
    const auto take = [&](int slot) {
      add_scaled(delta, m.k[slot * a.key + c], quad(m.v + slot * a.columns + at));
    };
    const int from = max(oldest, level(a, j, a.fill));
    if (fill - from == kFold) {
#pragma unroll
      for (int u = 0; u < kFold; ++u) take(u);
    } else {
      for (int u = from; u < fill; ++u) take(u & (kFold - 1));
    }
    add_scaled(piece.total, 1.f, delta);
    *reinterpret_cast<float4*>(p.summary + offset(j, i)) = piece.total;
    add_scaled(piece.target, a.closes ? p.next_weight : p.own, a.closes ? piece.total : delta);
  }
  __device__ void store(int j, int i, const float4& value) const {
    if (target()) *reinterpret_cast<float4*>(target() + offset(j, i)) = value;
  }

  // The first pieces, from the copies that `hold` started; R itself is still being read.
  __device__ void absorb_held(const StepMemory& m) const {
    for_each_held(
        [&](int i, float4* held) {
          SlicePiece piece{held[0], held[kThreads]};
          absorb(first, i, piece, m);
          held[kThreads] = piece.target;
        },
        m);
  }
  __device__ void finish(const StepMemory& m) const {
    for_each_held([&](int i, float4* held) { store(first, i, held[kThreads]); }, m);
    for (int j = first; j < last; ++j) {
      const int begun = j == first ? kHeld * kThreads : 0;
      for (int i = static_cast<int>(threadIdx.x) + begun; i < pieces(); i += kThreads) {
        if (!inside(j, i)) continue;
        SlicePiece piece = load(j, i);
        absorb(j, i, piece, m);
        store(j, i, piece.target);
      }
    }
  }
};

// phi(q) R of a thread block: rows of R stream through the registers, kAhead of them in flight.
// Threads of a group have the columns of a row between them, four each.
struct ReadOut {
  static constexpr int kAhead = 8;
  float4 ahead[kAhead], sum;
  const float* line;  // what is loaded next
  std::int64_t stride;
  int across, group, groups, column, dk, chunks;
  bool inside, whole;  // whole: no thread runs past the last row

  __device__ __forceinline__ ReadOut(const StepArgs& a, const Place& p, int columns) {
    const int tid = threadIdx.x;
    across = a.columns / 4;
    const int shift = __ffs(across) - 1;
    group = tid >> shift;
    groups = kThreads >> shift;
    column = (tid & (across - 1)) * 4;
    inside = column < columns;
    dk = a.dk;
    chunks = (dk + kAhead * groups - 1) / (kAhead * groups);
    whole = columns == a.columns && dk == chunks * kAhead * groups;
    sum = make_float4(0.f, 0.f, 0.f, 0.f);
    line = p.running + p.column + column + static_cast<std::int64_t>(group) * a.row;
    stride = static_cast<std::int64_t>(groups) * a.row;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(i, group + i * groups);
  }
  __device__ __forceinline__ void load(int i, int row) {
    ahead[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (inside && row < dk) ahead[i] = quad(line);
    line += stride;
  }
  // kAhead rows of each group at a time.
  __device__ __forceinline__ void read(int first, int last, const float* q) {
    if (whole) {
      for (int chunk = first; chunk < last; ++chunk) {
        const float* at = q + group + chunk * kAhead * groups;
        const bool more = chunk + 1 < chunks;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          add_scaled(sum, at[i * groups], ahead[i]);
          if (more) ahead[i] = quad(line);
          line += stride;
        }
      }
    } else {
      for (int chunk = first; chunk < last; ++chunk) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int row = group + (chunk * kAhead + i) * groups;
          if (row < dk) add_scaled(sum, q[row], ahead[i]);
          load(i, row + kAhead * groups);
        }
      }
    }
  }
  // Sums of the groups that a warp has, then one row of `partial` for each warp or pair of warps.
  __device__ __forceinline__ void store(float* partial) {
    for (int offset = across; offset < 32; offset <<= 1) {
      sum.x += ptx::exchange(sum.x, offset);
      sum.y += ptx::exchange(sum.y, offset);
      sum.z += ptx::exchange(sum.z, offset);
      sum.w += ptx::exchange(sum.w, offset);
    }
    const int tid = threadIdx.x, part = across < 32 ? tid / 32 : group;
    if (tid % 32 < across) *reinterpret_cast<float4*>(partial + part * across * 4 + column) = sum;
  }
  __device__ int parts() const { return min(groups, kThreads / 32); }
};

// The outputs read the matrices as they were and add the last tokens from the ring; then the slices
// whose turn it is take up their tokens. Token u of the block is in slot u % kFold.
template <typename E>
__device__ __forceinline__ void step(const StepArgs& a, int index, float* shared) {
  const Place p = place_of(a, index, a.columns);
  const int columns = min(a.columns, a.row - p.column), tid = threadIdx.x;
  const int fill = a.fill + 1, slot = a.fill % kFold;
  const bool divides = a.normalizer != 2;
  const StepMemory m(a, shared);

  // Everything is asked for at once, the query first: R streams as soon as it is there.
  const E* q_in = row_of<E>(a.q, p.b, 0, p.h);
  E q_raw[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // dk is at most 2 * kThreads
    if (tid + i * kThreads < a.dk) q_raw[i] = q_in[tid + i * kThreads];
  }
  const int new_column = p.column + tid;
  float new_v = 0.f;
  if (tid < columns && new_column < a.dv) {
    new_v = to_float(row_of<E>(a.v, p.b, 0, p.h)[new_column]);
  }
  ReadOut out(a, p, columns);
  start_keys(a, p, m);
  for (int u = out.group; out.inside && u < kFold; u += out.groups) {
    if (u == slot) continue;  // this token's own
    ptx::copy_async(m.v + u * a.columns + out.column,
                    p.open + a.ring_v_at + u * a.row + p.column + out.column, true);
  }
  const TakeUp slices(a, p, columns);
  slices.hold(m);
  ptx::copy_commit();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int c = tid + i * kThreads;
    if (c < a.key) m.q[c] = c < a.dk ? phi(a.map, to_float(q_raw[i])) : 0.f;
  }
  sync_tokens();

  // Half of R; then the last tokens, while more of it is on its way.
  const int half = (out.chunks + 1) / 2;
  out.read(0, half, m.q);
  if (tid < columns) {
    m.v[slot * a.columns + tid] = new_v;
    p.open[a.ring_v_at + slot * a.row + new_column] = new_v;
  }
  if (divides) read_denominator<E>(a, p, m);
  ptx::copy_wait<0>();
  read_keys<E>(a, p, m);
  sync_tokens();
  if (divides) store_z(a, p, a.columns, m.z);
  slices.absorb_held(m);
  out.read(half, out.chunks, m.q);
  if (out.inside) {
    const int from = max(slices.oldest, level(a, (p.column + out.column) / a.slice, a.fill));
    for (int u = from + out.group; u < fill; u += out.groups) {
      const int at = u & (kFold - 1);
      add_scaled(out.sum, p.own * m.scores[at], quad(m.v + at * a.columns + out.column));
    }
  }
  out.store(m.partial);
  sync_tokens();

  if (tid < columns) {
    float total = 0.f;
#pragma unroll 8
    for (int g = 0; g < out.parts(); ++g) total += m.partial[g * a.columns + tid];
    float divisor = 1.f;
    if (divides) divisor = a.scale * (m.dens[1] + p.own * m.dens[0]) + a.eps;
    E* o = const_cast<E*>(row_of<E>(a.o, p.b, 0, p.h)) + new_column;
    if (new_column < a.dv) store_output(a, o, total, divisor);
  }
  slices.finish(m);
  if (a.closes) close_denominator(a, p, m.z);
}

template <typename E>
__global__ void __launch_bounds__(kThreads + 32 * kMixWarps, 2)
    step_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ __align__(16) unsigned char shared[];
  const bool mixes = threadIdx.x >= kThreads;
  ptx::begin_after_previous();
  if (mixes) {
    const int warp = static_cast<int>(threadIdx.x) / 32 - kThreads / 32;
    float* behind = reinterpret_cast<float*>(shared) +
                    step_floats(call.step.key, call.step.columns);
    mix_pieces(call.mix, call.mixtures, static_cast<int>(blockIdx.x) * kMixWarps + warp,
               static_cast<int>(gridDim.x) * kMixWarps, reinterpret_cast<MixMemory*>(behind)[warp]);
  } else {
    step<E>(call.step, static_cast<int>(blockIdx.x), reinterpret_cast<float*>(shared));
  }
}

}  // namespace mhla::cuda::state
