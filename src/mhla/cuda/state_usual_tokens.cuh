// Several tokens of the open block, for the heads of state_usual.cuh: phi(Q) R, the triangle of
// these tokens, and what they add to S and R, as products.
#pragma once

#include "mhla/cuda/state_usual.cuh"

namespace mhla::cuda::state {

inline constexpr int kTokensPanels = kUsualColumns / kUsualSlice;
static_assert(kTokensPanels == 4);
inline constexpr int kTokensRows = 64;  // tokens at a time, in four tiles of 16

// Rows are 16 bytes further apart than they are long, so that eight lie in different banks.
struct alignas(16) UsualTokensMemory {
  static constexpr int kKeyStride = kUsualKey + 8, kValueStride = kUsualColumns + 8;
  static constexpr int kScoreStride = kTokensRows + 8;
  bf16 q[kTokensRows][kKeyStride], k[kTokensRows][kKeyStride];
  bf16 v[kTokensRows][kValueStride];
  bf16 scores[kTokensRows][kScoreStride];
};

// A thread block owns four panels of a lane. A warp multiplies 16 tokens with two of them, and adds
// what tokens bring to one fragment of each.
struct UsualTokens {
  using Memory = UsualTokensMemory;
  const StepArgs& a;
  Memory& m;
  int b, head, column, warp, lane;
  int tile, panel;  // that the warp multiplies: rows 16 * tile and on, this panel and the next
  float own, next_weight;
  std::int64_t lane_at, matrix;

  __device__ UsualTokens(const StepArgs& args, Memory& memory) : a(args), m(memory) {
    constexpr int kBlocks = kUsualRow / kUsualColumns;
    const int place = static_cast<int>(blockIdx.x) / kBlocks;
    b = place / a.heads;
    head = place % a.heads;
    column = static_cast<int>(blockIdx.x) % kBlocks * kUsualColumns;
    warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
    tile = warp % 4;
    panel = warp / 4 * 2;
    own = a.per_head ? a.weights[head] : a.own;
    next_weight = a.per_head ? a.weights[a.heads + head] : a.next_weight;
    lane_at = place;
    matrix = place * a.width + column * kUsualKey + lane * kChunk<bf16>;
  }
  __device__ std::int64_t fragment(int of_panel, int row) const {
    return matrix + (of_panel * kFragments + row) * kFragment;
  }

  // Rows of kWidth numbers into shared memory, phi of them if `maps`; zeros behind the last.
  template <int kWidth, typename To>
  __device__ void load(const Rows& rows, int first_column, bool maps, int done, int count,
                       To& to) const {
    constexpr int kAcross = kWidth / kChunk<bf16>;
    const bf16* from = row_of<bf16>(rows, b, done, head) + first_column;
    const bool whole = ((reinterpret_cast<std::uint64_t>(from) | rows.token * 2) & 15) == 0;
    for (int i = threadIdx.x; i < kTokensRows * kAcross; i += kThreads) {
      const int t = i / kAcross, c = i % kAcross * kChunk<bf16>;
      Chunk chunk{};
      if (t < count) {
        const bf16* row = from + t * rows.token + c;
        float x[kChunk<bf16>];
        if (whole) {
          unpack<bf16>(*reinterpret_cast<const Chunk*>(row), x);
        } else {
#pragma unroll
          for (int j = 0; j < kChunk<bf16>; ++j) x[j] = to_float(row[j]);
        }
#pragma unroll
        for (int j = 0; j < kChunk<bf16>; ++j) x[j] = maps ? phi(a.map, x[j]) : x[j];
        chunk = pack<bf16>(x);
      }
      *reinterpret_cast<Chunk*>(&to[t][c]) = chunk;
    }
  }

  // The slices take up the tokens that are in the ring only.
  __device__ void begin() const {
    if (a.fill == a.base) return;
    const bf16* ring = static_cast<const bf16*>(a.ring) + lane_at * a.ring_width;
    const unsigned known = slots(a.base, a.fill);
    const auto copy = [&](int width, const bf16* from, int from_stride, bf16* to, int to_stride) {
      for (int i = threadIdx.x * kChunk<bf16>; i < kFold * width; i += kThreads * kChunk<bf16>) {
        const int t = i / width, c = i % width;
        Chunk chunk{};
        if (known >> t & 1) chunk = *reinterpret_cast<const Chunk*>(from + t * from_stride + c);
        *reinterpret_cast<Chunk*>(to + t * to_stride + c) = chunk;
      }
    };
    copy(kUsualKey, ring, kUsualKey, m.k[0], Memory::kKeyStride);
    copy(kUsualColumns, ring + a.ring_v_at + column, kUsualRow, m.v[0], Memory::kValueStride);
    __syncthreads();
    for (int j = 0; j < kTokensPanels; ++j) {
      const int from = level(a, column / kUsualSlice + j, a.fill);
      float added[2][4] = {};
      multiply_tokens<true>(&m.k[0][warp * kFragmentRows], Memory::kKeyStride,
                            &m.v[0][j * kUsualSlice], Memory::kValueStride, added,
                            slots(from, a.fill));
      add(fragment(j, warp), added, false);
    }
    __syncthreads();
  }

  __device__ void add(std::int64_t at, const float (&added)[2][4], bool closes) const {
    Chunk* const summary = chunk_at(a.summary, at);
    Chunk sum = *summary;
    add_chunk(sum, 1.f, added);
    *summary = sum;
    if (!closes) {
      Chunk* const running = chunk_at(a.running, at);
      sum = *running;
      add_chunk(sum, own, added);
      *running = sum;
    } else if (a.next) {
      *chunk_at(a.started, at) = begun_with(sum, next_weight, a.next + at);
    }
  }

  // own * phi(q) . phi(k) of 16 tokens with 32, zero where the key is not before the query.
  __device__ void multiply_scores() const {
    const int first = warp / 4 * 32;
    Accumulator<1, 4> sums;
    clear(sums);
    if (first < (tile + 1) * 16) {
      warp_gemm_16bit<false, true>(sums, m.q[tile * 16], Memory::kKeyStride, m.k[first],
                                   Memory::kKeyStride, kUsualKey);
    }
    for_each_pair(sums, [&](int row, int col, float x, float y) {
      const int t = tile * 16 + row, u = first + col;
      store_pair(&m.scores[t][u], u <= t ? own * x : 0.f, u + 1 <= t ? own * y : 0.f);
    });
  }

  // phi(q) R, then the triangle.
  __device__ void multiply(int done, int count) const {
    Accumulator<1, 4> sums;
    clear(sums);
#pragma unroll
    for (int step = 0; step < kFragments; ++step) {
      std::uint32_t q[4];
      ptx::load_matrix(q, &m.q[tile * 16 + lane % 16][step * 16 + lane / 16 * 8]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Chunk r = *chunk_at(a.running, fragment(panel + j, step));
        ptx::mma_bf16(sums[0][2 * j], q, r.word[0], r.word[2]);
        ptx::mma_bf16(sums[0][2 * j + 1], q, r.word[1], r.word[3]);
      }
    }
    __syncthreads();  // the scores are there
    warp_gemm_16bit<false, false>(sums, m.scores[tile * 16], Memory::kScoreStride,
                                  &m.v[0][panel * kUsualSlice], Memory::kValueStride,
                                  (tile + 1) * 16);
    bf16* o = const_cast<bf16*>(row_of<bf16>(a.o, b, done, head)) + column + panel * kUsualSlice;
    for_each_pair(sums, [&](int row, int col, float x, float y) {
      const int t = tile * 16 + row;
      if (t >= count) return;
      o[t * a.o.token + col] = from_float<bf16>(a.scale * x);
      o[t * a.o.token + col + 1] = from_float<bf16>(a.scale * y);
    });
  }

  __device__ void take_up(bool closes) const {
#pragma unroll 2
    for (int j = 0; j < kTokensPanels; ++j) {
      float added[2][4] = {};
#pragma unroll
      for (int t = 0; t < kTokensRows; t += 16) {
        multiply_tokens(&m.k[t][warp * kFragmentRows], Memory::kKeyStride, &m.v[t][j * kUsualSlice],
                        Memory::kValueStride, added);
      }
      add(fragment(j, warp), added, closes);
    }
  }

  __device__ void run() const {
    begin();
    for (int done = 0; done < a.count; done += kTokensRows) {
      const int count = min(kTokensRows, a.count - done);
      load<kUsualKey>(a.q, 0, true, done, count, m.q);
      load<kUsualKey>(a.k, 0, true, done, count, m.k);
      load<kUsualColumns>(a.v, column, false, done, count, m.v);
      __syncthreads();
      multiply_scores();
      multiply(done, count);
      __syncthreads();  // all of R was read
      take_up(a.closes && done + count == a.count);
      __syncthreads();
    }
  }
};

__global__ void __launch_bounds__(kThreads, 2)
    usual_tokens_kernel(const __grid_constant__ StepArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  UsualTokens(args, *reinterpret_cast<UsualTokensMemory*>(shared)).run();
}

}  // namespace mhla::cuda::state
