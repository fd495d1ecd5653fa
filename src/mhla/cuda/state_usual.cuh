// A step of the heads that language models have: 128 keys and 256 values stored in bf16, slices of
// 16 columns, no denominator.
//
// A step of a few microseconds waits for instructions as long as for data, so all sizes are known
// here, addresses are ready before the previous kernel has ended, and everything is a product of
// one or two instructions. Matrices lie in memory as the operands of these (usual_at): what a lane
// loads it multiplies, adds to and stores again.
#pragma once

#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/state_mix.cuh"

namespace mhla::cuda::state {

inline constexpr int kUsualWarps = kThreads / 32;  // that read the token
// Rows of a fragment; a warp takes up the tokens of one fragment of each panel.
inline constexpr int kFragmentRows = 16, kFragments = kUsualKey / kFragmentRows;
static_assert(kFragments == kUsualWarps && kFold == 16 && kUsualSlice == 16);

// The slots of token `first` and on, without `last`, as far as the ring has them.
__device__ __forceinline__ unsigned slots(int first, int last) {
  const int count = min(last - first, kFold);
  const unsigned twice = ((1u << count) - 1) << (kFold + (last - 1) % kFold + 1 - count);
  return (twice >> kFold | twice) & 0xffffu;
}

// How the warps share the panels of a thread block when they read R.
template <int kColumns>
struct UsualShare {
  static constexpr int kPanels = kColumns / kUsualSlice;
  static constexpr int kParts = kPanels < kUsualWarps ? kUsualWarps / kPanels : 1;  // of a panel
  static constexpr int kSteps = kFragments / kParts;            // fragments of a panel, for a warp
  static constexpr int kEach = kPanels * kParts / kUsualWarps;  // panels of a warp
};

template <int kColumns>
struct alignas(16) UsualMemory {
  // Rows are 16 bytes further apart than they are long, so that eight lie in different banks.
  static constexpr int kKeyStride = kUsualKey + 8, kValueStride = kColumns + 8;
  bf16 k[kFold][kKeyStride];  // the last tokens, as the ring has them
  bf16 v[kFold][kValueStride];
  bf16 q[kUsualWarps][2][kKeyStride];  // of each warp: the sum of two parts is phi(q), to 16 bits
  float partial[UsualShare<kColumns>::kParts][kColumns];
  float scores[kFold];
};

// What a thread knows before the previous kernel has ended.
template <int kColumns>
struct UsualPlace {
  using Share = UsualShare<kColumns>;
  int warp, lane, b, head, column, slot;
  int panel, step;  // of R, the first that the warp reads; panels are counted in the thread block
  const bf16 *q, *k, *v;
  bf16* ring;
  std::int64_t matrix;  // where this lane's part of the thread block's first fragment is
  bool takes_up;        // the slice whose turn it is belongs to this thread block
  unsigned missing;     // slots of tokens that R misses in this thread's column
  unsigned known;       // slots that hold a token of this block

  __device__ __forceinline__ explicit UsualPlace(const StepArgs& a) {
    const int tid = threadIdx.x, index = blockIdx.x;
    constexpr int kBlocks = kUsualRow / kColumns;
    const int place = index / kBlocks;
    b = place / a.heads;
    head = place % a.heads;
    column = index % kBlocks * kColumns;
    warp = tid / 32;
    lane = tid % 32;
    panel = warp / Share::kParts * Share::kEach;
    step = warp % Share::kParts * Share::kSteps;
    slot = a.fill % kFold;
    q = row_of<bf16>(a.q, b, 0, head);
    k = row_of<bf16>(a.k, b, 0, head);
    v = row_of<bf16>(a.v, b, 0, head) + column;
    ring = static_cast<bf16*>(a.ring) + place * a.ring_width;
    matrix = place * a.width + column * kUsualKey + lane * kChunk<bf16>;
    const int due = a.due_first * kUsualSlice;
    takes_up = due >= column && due < column + kColumns;
    known = slots(a.base, a.fill + 1);
    missing = tid < kColumns ? missed(a, tid / kUsualSlice) : 0;
  }
  __device__ __forceinline__ std::int64_t fragment(int of_panel, int row) const {
    return matrix + (of_panel * kFragments + row) * kFragment;
  }
  // Slots of the tokens that a panel has not taken up.
  __device__ __forceinline__ unsigned missed(const StepArgs& a, int of_panel) const {
    return slots(level(a, column / kUsualSlice + of_panel, a.fill), a.fill + 1);
  }
};

// phi(q) of 16 rows as the second operand of a product: one column for each of its two parts.
// NOTE: zeros of the second part, and of the other columns, make NaN of infinities in R and k.
template <int kColumns>
__device__ __forceinline__ void load_query(const UsualPlace<kColumns>& p, int step,
                                           const UsualMemory<kColumns>& m, std::uint32_t (&q)[2]) {
  q[0] = q[1] = 0;
  if (p.lane >= 8) return;
  const bf16* part = &m.q[p.warp][p.lane / 4][step * kFragmentRows + p.lane % 4 * 2];
  q[0] = *reinterpret_cast<const std::uint32_t*>(part);
  q[1] = *reinterpret_cast<const std::uint32_t*>(part + 8);
}

// Scores of the last tokens, by one warp.
template <int kColumns>
__device__ __forceinline__ void read_scores(const UsualPlace<kColumns>& p,
                                            UsualMemory<kColumns>& m) {
  float sums[2][4] = {};
#pragma unroll
  for (int step = 0; step < kFragments; ++step) {
    std::uint32_t k[4], q[2];
    ptx::load_matrix(k, &m.k[p.lane % 16][step * kFragmentRows + p.lane / 16 * 8]);
    load_query(p, step, m, q);
    ptx::mma_bf16(sums[step % 2], k, q[0], q[1]);
  }
  if (p.lane % 4 == 0) {
    m.scores[p.lane / 4] = (sums[0][0] + sums[0][1]) + (sums[1][0] + sums[1][1]);
    m.scores[p.lane / 4 + 8] = (sums[0][2] + sums[0][3]) + (sums[1][2] + sums[1][3]);
  }
}

// What 16 tokens, or those of some slots, add to a fragment, in the order of a chunk: sums += V^T
// K.
template <bool kSome = false>
__device__ __forceinline__ void multiply_tokens(const bf16* k, int k_stride, const bf16* v,
                                                int v_stride, float (&sums)[2][4],
                                                unsigned some = 0) {
  std::uint32_t values[4], keys[4];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2 * 8;
  ptx::load_matrix_transposed(values, v + row * v_stride + odd);
  ptx::load_matrix_transposed(keys, k + lane % 16 * k_stride + lane / 16 * 8);
#pragma unroll
  for (int i = 0; kSome && i < 4; ++i) {  // two neighbouring tokens
    const unsigned pair = some >> (lane % 4 * 2 + i / 2 * 8);
    values[i] &= (pair & 1 ? 0xffffu : 0) | (pair & 2 ? 0xffff0000u : 0);
  }
  ptx::mma_bf16(sums[0], values, keys[0], keys[1]);
  ptx::mma_bf16(sums[1], values, keys[2], keys[3]);
}

// to += weight * x, rounded.
__device__ __forceinline__ void add_chunk(Chunk& to, float weight, const float (&x)[2][4]) {
  float sum[kChunk<bf16>];
  unpack<bf16>(to, sum);
#pragma unroll
  for (int i = 0; i < kChunk<bf16>; ++i) sum[i] = fmaf(weight, x[i / 4][i % 4], sum[i]);
  to = pack<bf16>(sum);
}

// What R of the next block begins with: S as it is stored, so that mixing it anew gives the same
// bits, added to the mixture of the blocks before.
__device__ __forceinline__ Chunk begun_with(const Chunk& summary, float weight, const float* next) {
  float sum[kChunk<bf16>];
  unpack<bf16>(summary, sum);
#pragma unroll
  for (int i = 0; i < kChunk<bf16>; ++i) sum[i] = fmaf(weight, sum[i], next[i]);
  return pack<bf16>(sum);
}

__device__ __forceinline__ Chunk* chunk_at(void* matrices, std::int64_t at) {
  return reinterpret_cast<Chunk*>(static_cast<bf16*>(matrices) + at);
}

// The block closes: all slices take up their tokens, and the next block's R begins.
template <int kColumns>
__device__ __forceinline__ void close_block(const StepArgs& a, const UsualPlace<kColumns>& p,
                                            const UsualMemory<kColumns>& m) {
  const float weight = a.per_head ? a.weights[a.heads + p.head] : a.next_weight;
#pragma unroll 4
  for (int panel = 0; panel < UsualShare<kColumns>::kPanels; ++panel) {
    const std::int64_t at = p.fragment(panel, p.warp);
    Chunk summary = *chunk_at(a.summary, at);
    float added[2][4] = {};
    multiply_tokens<true>(&m.k[0][p.warp * kFragmentRows], m.kKeyStride,
                          &m.v[0][panel * kUsualSlice], m.kValueStride, added, p.missed(a, panel));
    add_chunk(summary, 1.f, added);
    *chunk_at(a.summary, at) = summary;
    if (a.next) *chunk_at(a.started, at) = begun_with(summary, weight, a.next + at);
  }
}

template <int kColumns, bool kCloses>
__device__ __forceinline__ void usual_step(const StepArgs& a, const UsualPlace<kColumns>& p,
                                           UsualMemory<kColumns>& m) {
  using Share = UsualShare<kColumns>;
  constexpr int kEach = Share::kEach, kAll = kEach * Share::kSteps, kAhead = kAll < 8 ? kAll : 8;
  const int tid = threadIdx.x;
  const auto load = [&](int i) {  // fragment i of the warp
    return *chunk_at(a.running, p.fragment(p.panel + i % kEach, p.step + i / kEach));
  };

  // Everything is asked for at once, the query first: R streams as soon as it is there.
  bf16 q_raw[kUsualKey / 32];
#pragma unroll
  for (int i = 0; i < kUsualKey / 32; ++i) q_raw[i] = p.q[i * 32 + p.lane];
  const bf16 k_raw = tid < kUsualKey ? p.k[tid] : bf16{};
  const bf16 v_raw = tid < kColumns ? p.v[tid] : bf16{};
  Chunk ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = load(i);
  ptx::sync_warp();  // NOTE: the compiler would ask for the ring first
  const float own = a.per_head ? a.weights[p.head] : a.own;
  const auto copy = [&](int i, bf16* to, const bf16* from) {
    if (i != p.slot) ptx::copy_async(to, from, p.known >> i & 1);
  };
  {
    constexpr int kAcross = kUsualKey / kChunk<bf16>;
    const int i = tid / kAcross, c = tid % kAcross * kChunk<bf16>;
    copy(i, &m.k[i][c], p.ring + i * kUsualKey + c);
  }
  bf16* ring_v = p.ring + a.ring_v_at + p.column;
  constexpr int kAcross = kColumns / kChunk<bf16>;
#pragma unroll
  for (int first = 0; first < kFold * kAcross; first += kThreads) {
    const int i = (first + tid) / kAcross, c = tid % kAcross * kChunk<bf16>;
    if (i < kFold) copy(i, &m.v[i][c], ring_v + i * kUsualRow + c);
  }
  ptx::copy_commit();
  const bool takes_up = !kCloses && p.takes_up;
  const int due = a.due_first - p.column / kUsualSlice;
  Chunk summary{}, running{};
  if (takes_up) {
    summary = *chunk_at(a.summary, p.fragment(due, p.warp));
    running = *chunk_at(a.running, p.fragment(due, p.warp));
  }

  // Half of R, the rest of which is asked for; then the last tokens.
#pragma unroll
  for (int i = 0; i < kUsualKey / 32; ++i) {
    const float q = phi(a.map, to_float(q_raw[i]));
    const bf16 most = from_float<bf16>(q);
    const float rest = q - to_float(most);
    m.q[p.warp][0][i * 32 + p.lane] = most;
    m.q[p.warp][1][i * 32 + p.lane] = from_float<bf16>(rest == rest ? rest : 0.f);  // q: infinite
  }
  if (tid < kUsualKey) {
    const bf16 stored = from_float<bf16>(phi(a.map, to_float(k_raw)));
    m.k[p.slot][tid] = stored;
    if (p.column == 0) p.ring[p.slot * kUsualKey + tid] = stored;
  }
  if (tid < kColumns) {
    m.v[p.slot][tid] = v_raw;
    ring_v[p.slot * kUsualRow + tid] = v_raw;
  }
  ptx::sync_warp();
  float sums[kEach][4] = {};
  std::uint32_t q[2];
  const auto read = [&](int i) {
    if (i % kEach == 0) load_query(p, p.step + i / kEach, m, q);
    ptx::mma_bf16(sums[i % kEach], ahead[i % kAhead].word, q[0], q[1]);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    read(i);
    if (i + kAhead < kAll) ahead[i] = load(i + kAhead);
  }
  ptx::copy_wait<0>();
  sync_tokens();
  if (takes_up) {
    float added[2][4] = {};
    multiply_tokens(&m.k[0][p.warp * kFragmentRows], m.kKeyStride, &m.v[0][due * kUsualSlice],
                    m.kValueStride, added);
    add_chunk(summary, 1.f, added);
    add_chunk(running, own, added);
    *chunk_at(a.summary, p.fragment(due, p.warp)) = summary;
  }
  if (p.warp == 0) read_scores(p, m);
#pragma unroll
  for (int i = kAhead; i < kAll; ++i) read(i);
  if (p.lane % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float* to = &m.partial[p.warp % Share::kParts][(p.panel + i) * kUsualSlice + p.lane / 4];
      to[0] = sums[i][0] + sums[i][1];
      to[8] = sums[i][2] + sums[i][3];
    }
  }
  sync_tokens();

  if (tid < kColumns) {
    float last = 0.f, total = 0.f;
#pragma unroll
    for (int i = 0; i < kFold; ++i) {
      if (p.missing >> i & 1) last = fmaf(m.scores[i], to_float(m.v[i][tid]), last);
    }
#pragma unroll
    for (int i = 0; i < Share::kParts; ++i) total += m.partial[i][tid];
    bf16* o = const_cast<bf16*>(row_of<bf16>(a.o, p.b, 0, p.head)) + p.column;
    o[tid] = from_float<bf16>(a.scale * fmaf(own, last, total));
  }
  // All of R was read.
  if (takes_up) *chunk_at(a.running, p.fragment(due, p.warp)) = running;
  if constexpr (kCloses) close_block(a, p, m);
}

inline constexpr int kUsualMixWarps = 4, kUsualThreads = kThreads + 32 * kUsualMixWarps;
template <int kColumns>
inline constexpr int kUsualBytes = static_cast<int>(sizeof(UsualMemory<kColumns>) +
                                                    kUsualMixWarps * sizeof(FourWarpsMemory));

static_assert(kUsualBytes<kUsualRow> <= 99 * 1024, "what every device from sm_80 on has");

template <int kColumns, bool kCloses>
__global__ void __launch_bounds__(kUsualThreads, 2)
    usual_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ __align__(16) unsigned char shared[];
  using Memory = UsualMemory<kColumns>;
  if (threadIdx.x >= kThreads) {
    const int warp = static_cast<int>(threadIdx.x) / 32 - kThreads / 32;
    ptx::begin_after_previous();
    mix_pieces(call.mix, call.mixtures, static_cast<int>(blockIdx.x) * kUsualMixWarps + warp,
               static_cast<int>(gridDim.x) * kUsualMixWarps,
               reinterpret_cast<FourWarpsMemory*>(shared + sizeof(Memory))[warp]);
  } else {
    const UsualPlace<kColumns> place(call.step);
    ptx::begin_after_previous();
    usual_step<kColumns, kCloses>(call.step, place, *reinterpret_cast<Memory*>(shared));
  }
}

}  // namespace mhla::cuda::state
