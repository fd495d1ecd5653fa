// A step of the heads that language models have: 128 keys and 256 values stored in bf16, slices of
// 16 columns, no denominator, and at most one slice that takes up its tokens.
//
// A step of a few microseconds waits for instructions as long as for data, so all sizes are known
// here, addresses are ready before the previous kernel has ended, and what the last tokens add to a
// slice, and their scores, are products of one or two instructions.
#pragma once

#include "mhla/cuda/device/warp_gemm.cuh"
#include "mhla/cuda/state_mix.cuh"

namespace mhla::cuda::state {

inline constexpr int kUsualKey = 128, kUsualRow = 256, kUsualSlice = 16;
inline constexpr int kWarpRows = kUsualKey / (kThreads / 32);  // of R, for a warp
static_assert(kWarpRows == 16 && kFold == 16, "the products of take_up and read_scores");

template <int kColumns>
struct alignas(16) UsualMemory {
  // Rows are 16 bytes further apart than they are long, so that eight lie in different banks.
  static constexpr int kKeyStride = kUsualKey + 8, kValueStride = kColumns + 8;
  Chunk slice[2][kThreads];   // of S and of R: rows of two chunks
  bf16 k[kFold][kKeyStride];  // the last tokens, as the ring has them
  bf16 v[kFold][kValueStride];
  bf16 q_parts[2][kKeyStride];  // their sum is phi(q), to 16 bits
  float q[kUsualKey];
  float partial[kThreads / 32][kColumns];
  float scores[kFold];
};

// What a thread knows before the previous kernel has ended.
template <int kColumns>
struct UsualPlace {
  static constexpr int kAcross = kColumns / kChunk<bf16>;  // threads that share a row of R
  static constexpr int kRows = kWarpRows * kAcross / 32;   // of a thread
  int warp, lane, b, head, column, slot;
  const bf16 *q, *k, *v, *lines;  // lines: of R, the first that the thread reads
  bf16* ring;
  std::int64_t slice;  // where the slice that takes up its tokens begins
  bool takes_up;
  unsigned missing;  // slots of tokens that R misses in this thread's column
  unsigned known;    // slots that hold a token of this block

  __device__ __forceinline__ explicit UsualPlace(const StepArgs& a) {
    const int tid = threadIdx.x, index = blockIdx.x;
    constexpr int kBlocks = kUsualRow / kColumns;
    const int place = index / kBlocks;
    b = place / a.heads;
    head = place % a.heads;
    column = index % kBlocks * kColumns;
    warp = tid / 32;
    lane = tid % 32;
    slot = a.fill % kFold;
    q = row_of<bf16>(a.q, b, 0, head);
    k = row_of<bf16>(a.k, b, 0, head);
    v = row_of<bf16>(a.v, b, 0, head) + column;
    ring = static_cast<bf16*>(a.ring) + place * a.ring_width;
    const int row = warp * kWarpRows + lane / kAcross * kRows;
    lines = static_cast<const bf16*>(a.running) + place * a.width + column + row * kUsualRow +
            lane % kAcross * kChunk<bf16>;
    const int due = a.due_first * kUsualSlice;
    takes_up = a.due_first < a.due_last && due >= column && due < column + kColumns;
    slice = place * a.width + due;
    const int fill = a.fill + 1, oldest = max(a.base, fill - kFold);
    known = slots(a.fill, fill - oldest);
    missing = 0;
    if (tid < kColumns) {
      const int j = (column + tid) / kUsualSlice;
      missing = slots(a.fill, fill - max(oldest, level(a, j, a.fill)));
    }
  }
  // The slots of the last `count` tokens, of which `newest` is the last.
  static __device__ __forceinline__ unsigned slots(int newest, int count) {
    const unsigned twice = ((1u << count) - 1) << (kFold + newest % kFold + 1 - count);
    return (twice >> kFold | twice) & 0xffffu;
  }
};

// Scores of the last tokens, by one warp. NOTE: an infinite key gives NaN, where one product of
// floats would give infinity.
template <int kColumns>
__device__ __forceinline__ void read_scores(int lane, UsualMemory<kColumns>& m) {
  float sums[2][4] = {};
#pragma unroll
  for (int c = 0; c < kUsualKey; c += 16) {
    std::uint32_t k[4];
    ptx::load_matrix(k, &m.k[lane % 16][c + lane / 16 * 8]);
    std::uint32_t q[2] = {0, 0};
    if (lane < 8) {
      const bf16* part = &m.q_parts[lane / 4][c + lane % 4 * 2];
      q[0] = *reinterpret_cast<const std::uint32_t*>(part);
      q[1] = *reinterpret_cast<const std::uint32_t*>(part + 8);
    }
    ptx::mma_bf16(sums[c / 16 % 2], k, q[0], q[1]);
  }
  if (lane % 4 == 0) {
    m.scores[lane / 4] = (sums[0][0] + sums[0][1]) + (sums[1][0] + sums[1][1]);
    m.scores[lane / 4 + 8] = (sums[0][2] + sums[0][3]) + (sums[1][2] + sums[1][3]);
  }
}

// What the last tokens add to the slice: this warp's rows.
template <int kColumns>
__device__ __forceinline__ void take_up(const StepArgs& a, const UsualPlace<kColumns>& p, float own,
                                        UsualMemory<kColumns>& m, std::uint32_t (&running)[4]) {
  using Memory = UsualMemory<kColumns>;
  Accumulator<1, 2> added;
  clear(added);
  warp_gemm_16bit<true, false>(added, &m.k[0][p.warp * kWarpRows], Memory::kKeyStride,
                               &m.v[0][a.due_first * kUsualSlice - p.column], Memory::kValueStride,
                               kFold);
  bf16* summary = static_cast<bf16*>(a.summary) + p.slice;
  int i = 0;
  for_each_pair(added, [&](int row, int col, float x, float y) {
    const int at = (p.warp * kWarpRows + row) * kUsualSlice + col;
    const float2 s = load_pair(reinterpret_cast<const bf16*>(m.slice[0]) + at);
    const float2 r = load_pair(reinterpret_cast<const bf16*>(m.slice[1]) + at);
    store_pair(summary + (p.warp * kWarpRows + row) * kUsualRow + col, s.x + x, s.y + y);
    running[i++] = ptx::pack_bf16(fmaf(own, x, r.x), fmaf(own, y, r.y));
  });
}

template <int kColumns>
__device__ __forceinline__ void usual_step(const StepArgs& a, const UsualPlace<kColumns>& p,
                                           UsualMemory<kColumns>& m) {
  using Place = UsualPlace<kColumns>;
  constexpr int kRows = Place::kRows, kAhead = kRows < 8 ? kRows : 8;
  const int tid = threadIdx.x;

  // Everything is asked for at once, the query first: R streams as soon as it is there.
  const int row = p.warp * kWarpRows + p.lane % kWarpRows;
  const bf16 q_raw = p.q[row];
  const bf16 k_raw = tid < kUsualKey ? p.k[tid] : bf16{};
  const bf16 v_raw = tid < kColumns ? p.v[tid] : bf16{};
  Chunk ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ahead[i] = *reinterpret_cast<const Chunk*>(p.lines + i * kUsualRow);
  }
  ptx::sync_warp();  // NOTE: the compiler would ask for the ring first
  const float own = a.per_head ? a.weights[p.head] : a.own;
  const auto copy = [&](int i, bf16* to, const bf16* from) {
    if (i != p.slot) ptx::copy_async(to, from, p.known >> i & 1);
  };
  {
    constexpr int kChunks = kUsualKey / kChunk<bf16>;
    const int i = tid / kChunks, c = tid % kChunks * kChunk<bf16>;
    copy(i, &m.k[i][c], p.ring + i * kUsualKey + c);
  }
  bf16* ring_v = p.ring + a.ring_v_at + p.column;
  constexpr int kCopies = kFold * Place::kAcross;
#pragma unroll
  for (int first = 0; first < kCopies; first += kThreads) {
    const int i = (first + tid) / Place::kAcross, c = tid % Place::kAcross * kChunk<bf16>;
    if (i < kFold) copy(i, &m.v[i][c], ring_v + i * kUsualRow + c);
  }
  if (p.takes_up) {
    const std::int64_t at = p.slice + tid / 2 * kUsualRow + tid % 2 * kChunk<bf16>;
    ptx::copy_async(&m.slice[0][tid], static_cast<bf16*>(a.summary) + at, true);
    ptx::copy_async(&m.slice[1][tid], static_cast<bf16*>(a.running) + at, true);
  }
  ptx::copy_commit();

  // Half of R, the rest of which is asked for; then the last tokens.
  const float q = phi(a.map, to_float(q_raw));
  if (p.lane < kWarpRows) {
    const bf16 most = from_float<bf16>(q);
    const float rest = q - to_float(most);
    m.q[row] = q;
    m.q_parts[0][row] = most;
    m.q_parts[1][row] = from_float<bf16>(rest == rest ? rest : 0.f);  // q may be infinite
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
  const float* weights = m.q + p.warp * kWarpRows + p.lane / Place::kAcross * kRows;
  float sum[kChunk<bf16>] = {};
  const auto read = [&](int i) {
    float x[kChunk<bf16>];
    unpack<bf16>(ahead[i % kAhead], x);
#pragma unroll
    for (int c = 0; c < kChunk<bf16>; ++c) sum[c] = fmaf(weights[i], x[c], sum[c]);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    read(i);
    if (i + kAhead < kRows) {
      ahead[i] = *reinterpret_cast<const Chunk*>(p.lines + (i + kAhead) * kUsualRow);
    }
  }
  ptx::copy_wait<0>();
  sync_tokens();
  std::uint32_t running[4];
  if (p.takes_up) take_up(a, p, own, m, running);
  if (p.warp == 0) read_scores(p.lane, m);
#pragma unroll
  for (int i = kAhead; i < kRows; ++i) read(i);
#pragma unroll
  for (int offset = Place::kAcross; offset < 32; offset *= 2) {
#pragma unroll
    for (int c = 0; c < kChunk<bf16>; ++c) sum[c] += ptx::exchange(sum[c], offset);
  }
  if (p.lane < Place::kAcross) {
#pragma unroll
    for (int c = 0; c < kChunk<bf16>; c += 4) {
      *reinterpret_cast<float4*>(&m.partial[p.warp][p.lane * kChunk<bf16> + c]) = make_float4(
          sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
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
    for (int w = 0; w < kThreads / 32; ++w) total += m.partial[w][tid];
    bf16* o = const_cast<bf16*>(row_of<bf16>(a.o, p.b, 0, p.head)) + p.column;
    o[tid] = from_float<bf16>(a.scale * fmaf(own, last, total));
  }
  if (p.takes_up) {  // all of R was read
    bf16* slice = static_cast<bf16*>(a.running) + p.slice;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (p.warp * kWarpRows + p.lane / 4 + i % 2 * 8) * kUsualRow + p.lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(slice + at + i / 2 * 8) = running[i];
    }
  }
}

inline constexpr int kUsualMixWarps = 4, kUsualThreads = kThreads + 32 * kUsualMixWarps;
template <int kColumns>
inline constexpr int kUsualBytes = static_cast<int>(sizeof(UsualMemory<kColumns>) +
                                                    kUsualMixWarps * sizeof(FourWarpsMemory));

static_assert(kUsualBytes<kUsualRow> <= 99 * 1024, "what every device from sm_80 on has");

template <int kColumns>
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
    usual_step(call.step, place, *reinterpret_cast<Memory*>(shared));
  }
}

}  // namespace mhla::cuda::state
