// One token, and mixtures of closed summaries beside it.
//
// A thread block reads the token into some columns of a lane with its first kThreads threads; the
// warps behind them mix. All thread blocks are resident at once on a large GPU, so that everything
// a step reads is on its way from the start.
#pragma once

#include "mhla/cuda/state_mix.cuh"

namespace mhla::cuda::state {

// Chunks of a slice that a thread asks for at the start.
template <typename M>
inline constexpr int kHeld = sizeof(M) == 4 ? 2 : 1;

// Shared memory of the token.
template <typename M>
struct StepMemory {
  float *q, *z;    // [key]
  float* scores;   // [kFold]
  float* dens;     // [2], behind them
  float* partial;  // [warps, columns]
  M* k;            // [kFold, key], as the ring lies
  M* v;            // [kFold, columns]
  Chunk* held;     // [2 kHeld, kThreads]: chunks of the slices, each thread's own

  __device__ StepMemory(const StepArgs& a, unsigned char* shared) {
    q = reinterpret_cast<float*>(shared);
    z = q + a.key;
    scores = z + a.key;
    dens = scores + kFold;
    partial = scores + 2 * kFold;
    k = reinterpret_cast<M*>(partial + kThreads / 32 * a.columns);
    v = k + kFold * a.key;
    held = reinterpret_cast<Chunk*>(v + kFold * a.columns) + threadIdx.x;
  }
};
template <typename M>
constexpr int step_bytes(int key, int columns) {
  const int floats = 2 * key + 2 * kFold + kThreads / 32 * columns;
  return 4 * floats + kFold * (key + columns) * static_cast<int>(sizeof(M)) +
         2 * kHeld<M> * kThreads * static_cast<int>(sizeof(Chunk));
}

// The numbers of a chunk of M.
template <typename M>
struct Several {
  static constexpr int kCount = kChunk<M>;
  float x[kCount];

  __device__ __forceinline__ void add_scaled(float w, const Several& other) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = fmaf(w, other.x[i], x[i]);
  }
};
template <typename M>
__device__ __forceinline__ Several<M> unpacked(const Chunk& chunk) {
  Several<M> all;
  unpack<M>(chunk, all.x);
  return all;
}
template <typename M>
__device__ __forceinline__ Several<M> several(const M* p) {
  return unpacked<M>(*reinterpret_cast<const Chunk*>(p));
}

// phi of columns c and on of a row, as the ring stores them; zero past the width.
template <typename M, typename E>
__device__ __forceinline__ Chunk phi_chunk(const StepArgs& a, const E* row, int c) {
  float x[kChunk<M>];
#pragma unroll
  for (int i = 0; i < kChunk<M>; ++i) {
    x[i] = c + i < a.dk ? phi(a.map, to_float(row[c + i])) : 0.f;
  }
  return pack<M>(x);
}

// Keys of the last tokens on their way to shared memory, two for each warp. A lane copies what it
// will read itself.
constexpr int kKeysEach = kFold / (kThreads / 32);
template <typename M, typename F>
__device__ __forceinline__ void for_each_key(const StepArgs& a, F&& f) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kEach = kChunk<M>;
  for (int c = static_cast<int>(threadIdx.x) % 32 * kEach; c < a.key; c += 32 * kEach) {
#pragma unroll
    for (int i = 0; i < kKeysEach; ++i) f(c, i, (warp + i * (kThreads / 32)) * a.key + c);
  }
}
template <typename M>
__device__ __forceinline__ void start_keys(const StepArgs& a, const Place<M>& p,
                                           const StepMemory<M>& m) {
  const int slot = a.fill % kFold, warp = static_cast<int>(threadIdx.x) / 32;
  for_each_key<M>(a, [&](int, int i, int at) {
    if (slot == warp + i * (kThreads / 32)) return;  // this token's own
    ptx::copy_async(m.k + at, p.ring + at, true);
  });
}

// This token's key among them, and the scores of all.
template <typename E, typename M>
__device__ __forceinline__ void read_keys(const StepArgs& a, const Place<M>& p,
                                          const StepMemory<M>& m) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int slot = a.fill % kFold;
  const E* k_in = row_of<E>(a.k, p.b, 0, p.h);
  float sums[kKeysEach] = {};
  for_each_key<M>(a, [&](int c, int i, int at) {
    if (slot == warp + i * (kThreads / 32)) {
      const Chunk k = phi_chunk<M>(a, k_in, c);
      *reinterpret_cast<Chunk*>(m.k + at) = k;
      if (p.column == 0) *reinterpret_cast<Chunk*>(p.ring + at) = k;
    }
    const Several<M> k = several(m.k + at);
#pragma unroll
    for (int j = 0; j < kChunk<M>; j += 4) {
      const float4 q = load_four(m.q + c + j);
      sums[i] += q.x * k.x[j] + q.y * k.x[j + 1] + q.z * k.x[j + 2] + q.w * k.x[j + 3];
    }
  });
#pragma unroll
  for (int i = 0; i < kKeysEach; ++i) {
    sums[i] = ptx::sum_of_warp(sums[i]);
    if (lane == 0) m.scores[warp + i * (kThreads / 32)] = sums[i];
  }
}

// z with this token's key, q_den . z and q_den . (what the blocks before give), by one warp each.
template <typename E, typename M>
__device__ __forceinline__ void read_denominator(const StepArgs& a, const Place<M>& p,
                                                 const StepMemory<M>& m) {
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
      sum = fmaf(q, to_float(p.running[a.den_at + c]), sum);
    }
  }
  sum = ptx::sum_of_warp(sum);
  if (warp == 1 && a.normalizer == 1) sum = to_float(p.running[a.den_at + a.fill]);
  if (lane == 0) m.dens[warp] = sum;
}

// Slices take up their tokens: S, and R or, when the block closes, the next block's R.
template <typename M>
struct TakeUp {
  const StepArgs& a;
  const Place<M>& p;
  int columns, shift, first, last, oldest;  // shift: chunks of a slice's row

  __device__ TakeUp(const StepArgs& args, const Place<M>& place, int width)
      : a(args), p(place), columns(width), shift(args.slice == 16 ? 1 : 2) {
    if constexpr (sizeof(M) == 4) ++shift;
    const int begin = p.column / a.slice, end = begin + (columns + a.slice - 1) / a.slice;
    first = max(a.due_first, begin);
    last = min(a.due_last, end);
    oldest = max(a.base, a.fill + 1 - kFold);
  }
  __device__ int chunks() const { return a.dk << shift; }
  __device__ M* target() const { return !a.closes ? p.running : p.next ? p.started : nullptr; }
  __device__ int column_of(int j, int i) const {  // in the thread block
    return j * a.slice - p.column + (i & ((1 << shift) - 1)) * kChunk<M>;
  }
  __device__ std::int64_t offset(int j, int i) const {
    return static_cast<std::int64_t>(i >> shift) * a.row + p.column + column_of(j, i);
  }
  __device__ bool inside(int j, int i) const {
    return j < last && i < chunks() && column_of(j, i) < columns;
  }
  template <typename F>
  __device__ void for_each_held(F&& f, const StepMemory<M>& m) const {
#pragma unroll
    for (int n = 0; n < kHeld<M>; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * kThreads;
      if (inside(first, i)) f(i, m.held + 2 * n * kThreads);
    }
  }
  // Starts the copies of the first chunks; they are there after a wait.
  __device__ void hold(const StepMemory<M>& m) const {
    for_each_held(
        [&](int i, Chunk* held) {
          ptx::copy_async(held, p.summary + offset(first, i), true);
          if (!a.closes) ptx::copy_async(held + kThreads, p.running + offset(first, i), true);
        },
        m);
  }
  // Stores S, and in `result` what the target becomes, four numbers at a time: registers are full.
  __device__ void absorb(int j, int i, const M* summary, const M* running, M* result,
                         const StepMemory<M>& m) const {
    const int c = i >> shift, fill = a.fill + 1, from = max(oldest, level(a, j, a.fill));
#pragma unroll 1
    for (int part = 0; part < kChunk<M>; part += 4) {
      const int at = column_of(j, i) + part;
      float4 delta = make_float4(0.f, 0.f, 0.f, 0.f);
      const auto take = [&](int slot) {
        add_scaled(delta, to_float(m.k[slot * a.key + c]), load_four(m.v + slot * a.columns + at));
      };
      if (fill - from == kFold) {
#pragma unroll
        for (int u = 0; u < kFold; ++u) take(u);
      } else {
        for (int u = from; u < fill; ++u) take(u & (kFold - 1));
      }
      float4 total = load_four(summary + part);
      add_scaled(total, 1.f, delta);
      store_four(p.summary + offset(j, i) + part, total);
      if (!a.closes) {
        float4 r = load_four(running + part);
        add_scaled(r, p.own, delta);
        store_four(result + part, r);
      } else if (p.next) {  // with S as it is stored, so that mixing it anew gives the same bits
        float4 r = load_four(p.next + offset(j, i) + part);
        add_scaled(r, p.next_weight, as_stored<M>(total));
        store_four(result + part, r);
      }
    }
  }

  // The first chunks, from the copies that `hold` started; R itself is still being read.
  __device__ void absorb_held(const StepMemory<M>& m) const {
    for_each_held(
        [&](int i, Chunk* held) {
          M* target = reinterpret_cast<M*>(held + kThreads);
          absorb(first, i, reinterpret_cast<const M*>(held), target, target, m);
        },
        m);
  }
  __device__ void finish(const StepMemory<M>& m) const {
    M* const to = target();
    for_each_held(
        [&](int i, Chunk* held) {
          if (to) *reinterpret_cast<Chunk*>(to + offset(first, i)) = held[kThreads];
        },
        m);
    for (int j = first; j < last; ++j) {
      const int begun = j == first ? kHeld<M> * kThreads : 0;
      for (int i = static_cast<int>(threadIdx.x) + begun; i < chunks(); i += kThreads) {
        if (!inside(j, i)) continue;
        const std::int64_t at = offset(j, i);
        absorb(j, i, p.summary + at, p.running + at, to + at, m);
      }
    }
  }
};

// phi(q) R of a thread block: rows of R stream through the registers, kAhead of them in flight.
// Threads of a group have the columns of a row between them, a chunk each.
template <typename M>
struct ReadOut {
  static constexpr int kAhead = 8;
  Chunk ahead[kAhead];
  Several<M> sum;
  const M* line;  // what is loaded next
  std::int64_t stride;
  int across, group, groups, column, dk, chunks;
  bool inside, whole;  // whole: no thread runs past the last row

  __device__ __forceinline__ ReadOut(const StepArgs& a, const Place<M>& p, int columns) {
    const int tid = threadIdx.x;
    across = a.columns / kChunk<M>;
    const int shift = __ffs(across) - 1;
    group = tid >> shift;
    groups = kThreads >> shift;
    column = (tid & (across - 1)) * kChunk<M>;
    inside = column < columns;
    dk = a.dk;
    chunks = (dk + kAhead * groups - 1) / (kAhead * groups);
    whole = columns == a.columns && dk == chunks * kAhead * groups;
    sum = {};
    line = p.running + p.column + column + static_cast<std::int64_t>(group) * a.row;
    stride = static_cast<std::int64_t>(groups) * a.row;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(i, group + i * groups);
  }
  __device__ __forceinline__ void load(int i, int row) {
    ahead[i] = {};
    if (inside && row < dk) ahead[i] = *reinterpret_cast<const Chunk*>(line);
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
          sum.add_scaled(at[i * groups], unpacked<M>(ahead[i]));
          if (more) ahead[i] = *reinterpret_cast<const Chunk*>(line);
          line += stride;
        }
      }
    } else {
      for (int chunk = first; chunk < last; ++chunk) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int row = group + (chunk * kAhead + i) * groups;
          if (row < dk) sum.add_scaled(q[row], unpacked<M>(ahead[i]));
          load(i, row + kAhead * groups);
        }
      }
    }
  }
  // Sums of the groups that a warp has, then one row of `partial` for each warp or pair of warps.
  __device__ __forceinline__ void store(float* partial) {
    for (int offset = across; offset < 32; offset <<= 1) {
#pragma unroll
      for (int i = 0; i < kChunk<M>; ++i) sum.x[i] += ptx::exchange(sum.x[i], offset);
    }
    const int tid = threadIdx.x, part = across < 32 ? tid / 32 : group;
    if (tid % 32 >= across) return;
#pragma unroll
    for (int i = 0; i < kChunk<M>; i += 4) {
      store_four(partial + part * across * kChunk<M> + column + i,
                 make_float4(sum.x[i], sum.x[i + 1], sum.x[i + 2], sum.x[i + 3]));
    }
  }
  __device__ int parts() const { return min(groups, kThreads / 32); }
};

// The outputs read the matrices as they were and add the last tokens from the ring; then the slices
// whose turn it is take up their tokens. Token u of the block is in slot u % kFold.
template <typename E, typename M>
__device__ __forceinline__ void step(const StepArgs& a, int index, unsigned char* shared) {
  const Place<M> p = place_of<M>(a, index, a.columns);
  const int columns = min(a.columns, a.row - p.column), tid = threadIdx.x;
  const int fill = a.fill + 1, slot = a.fill % kFold;
  const bool divides = a.normalizer != 2;
  const StepMemory<M> m(a, shared);

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
  ReadOut<M> out(a, p, columns);
  start_keys(a, p, m);
  for (int u = out.group; out.inside && u < kFold; u += out.groups) {
    if (u == slot) continue;  // this token's own
    ptx::copy_async(m.v + u * a.columns + out.column,
                    p.ring + a.ring_v_at + u * a.row + p.column + out.column, true);
  }
  const TakeUp<M> slices(a, p, columns);
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
    const M stored = from_float<M>(new_v);
    m.v[slot * a.columns + tid] = stored;
    p.ring[a.ring_v_at + slot * a.row + new_column] = stored;
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
      out.sum.add_scaled(p.own * m.scores[at], several(m.v + at * a.columns + out.column));
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

template <typename E, typename M>
__global__ void __launch_bounds__(kThreads + 32 * kMixWarps, 2)
    step_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ __align__(16) unsigned char shared[];
  const bool mixes = threadIdx.x >= kThreads;
  ptx::begin_after_previous();
  if (mixes) {
    const int warp = static_cast<int>(threadIdx.x) / 32 - kThreads / 32;
    unsigned char* behind = shared + step_bytes<M>(call.step.key, call.step.columns);
    mix_pieces(call.mix, call.mixtures, static_cast<int>(blockIdx.x) * kMixWarps + warp,
               static_cast<int>(gridDim.x) * kMixWarps,
               reinterpret_cast<TwoWarpsMemory<M>*>(behind)[warp]);
  } else {
    step<E, M>(call.step, static_cast<int>(blockIdx.x), shared);
  }
}

// Rounds sums to what is stored.
inline constexpr int kStoreThreads = 256;
__global__ void __launch_bounds__(kStoreThreads)
    store_kernel(const __grid_constant__ StoreArgs args) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kStoreThreads + threadIdx.x) * 4;
  if (i < args.count) store_four(static_cast<bf16*>(args.stored) + i, load_four(args.sums + i));
}

}  // namespace mhla::cuda::state
