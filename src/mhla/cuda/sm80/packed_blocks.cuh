// Causal kernels of a whole block, for bf16 inputs without a normaliser. In the backward the mixed
// summary and the gradient of the own summary are known. Columns of dv come a few at a time, the
// next of them while these are worked on.
#pragma once

#include "mhla/cuda/sm80/packed_causal.cuh"

namespace mhla::cuda {

// Tiles of q and k, of the scores, and of kCols columns of what goes with dv: kMatrices of the
// [DK][DV] kind and kTensors of tokens, twice. Two thread blocks share a multiprocessor.
template <typename P, int kCols_, int kMatrices, int kTensors>
struct CausalBlockTiles {
  static constexpr int kCols = kCols_;
  static_assert(P::DV % kCols == 0);
  using VRows = GroupRows<kCols, P::kRN>;
  static constexpr int kVI = kCols / 8 / P::kRN;
  static constexpr int kLd = kCols + 8;
  static constexpr int kPLd = P::kRows + 8, kPI = P::kRows / 8 / P::kRN;
  static constexpr int kVElements = P::kRows * kLd, kSElements = P::DK * kLd;
  static constexpr int kStage = kMatrices * kSElements + kTensors * kVElements;
  static constexpr int kBytes = 2 * (2 * P::kKElements + P::kRows * kPLd + kVElements +
                                     2 * kStage) +
                                4 * P::Shape::kWarps;
  static constexpr int kBlocks = P::DK > 128 ? 1 : P::kThreads <= 128 ? 3 : 2;
  bf16 *q, *k, *p;  // p: [query][key]
  bf16* staged;     // rows on their way out
  bf16* stages;     // matrices, then tensors
  float* terms;     // of the gradient of m_ii, one a warp

  __device__ explicit CausalBlockTiles(unsigned char* shared) {
    q = reinterpret_cast<bf16*>(shared);
    k = q + P::kKElements;
    p = k + P::kKElements;
    staged = p + P::kRows * kPLd;
    stages = staged + kVElements;
    terms = reinterpret_cast<float*>(stages + 2 * kStage);
  }
  __device__ __forceinline__ bf16* matrix(int stage, int n) const {
    return stages + stage * kStage + n * kSElements;
  }
  __device__ __forceinline__ bf16* tensor(int stage, int n) const {
    return stages + stage * kStage + kMatrices * kSElements + n * kVElements;
  }

  // Columns of a [DK][DV] matrix; `from` starts at the first of them.
  static __device__ __forceinline__ void load_matrix(bf16* tile, const bf16* from) {
    constexpr int kPerRow = kCols / 8, kRowStep = P::kThreads / kPerRow;
    static_assert(P::kThreads % kPerRow == 0 && P::DK % kRowStep == 0);
    const int row = static_cast<int>(threadIdx.x / kPerRow);
    const int col = static_cast<int>(threadIdx.x % kPerRow) * 8;
#pragma unroll
    for (int r = 0; r < P::DK; r += kRowStep) {
      ptx::copy_async(tile + (row + r) * kLd + col, from + (row + r) * P::DV + col, true);
    }
  }
  // Where column `col` of dv starts in a summary.
  static __device__ __forceinline__ int place(int col) {
    return col / P::DV * (P::DK * P::DV) + col % P::DV;
  }

  // Rows of q and k start to load.
  static __device__ __forceinline__ void load_rows(const CausalBlockTiles& tiles,
                                                   const LinearArgs& args, const Place& place,
                                                   int tokens) {
    P::KRows::load(tiles.q, args.q.head<const bf16>(place.batch, place.head), args.q, tokens,
                   args.dk);
    P::KRows::load(tiles.k, args.k.head<const bf16>(place.batch, place.head), args.k, tokens,
                   args.dk);
  }
  // phi(q), phi(k), and factor * tril(phi(q) phi(k)^T) into p.
  __device__ __forceinline__ void make_scores(const LinearArgs& args, int count,
                                              float factor) const {
    P::KRows::map(q, args.map, count, args.dk);
    P::KRows::map(k, args.map, count, args.dk);
    __syncthreads();
    Accumulator<1, kPI> scores;
    add_scores(scores);
    store_triangle(scores, factor);
  }
  __device__ __forceinline__ void add_scores(Accumulator<1, kPI>& scores) const {
    clear(scores);
    mma_ABt(scores, q + P::Warps::index() * 16 * P::KRows::kLd, P::KRows::kLd,
            k + P::Warps::part() * kPI * 8 * P::KRows::kLd, P::KRows::kLd, P::DK);
  }
  // The group's rows of factor * tril(x), into p.
  __device__ __forceinline__ void store_triangle(Accumulator<1, kPI>& x, float factor) const {
    const int lane = static_cast<int>(threadIdx.x % 32), row0 = P::Warps::index() * 16 + lane / 4;
    const int col0 = P::Warps::part() * kPI * 8;
    for_each_half(x, [&](int half, int col, float a, float b) {
      const int row = row0 + 8 * half, key = col0 + col;
      store_pair(p + row * kPLd + key, key <= row ? factor * a : 0.f,
                 key + 1 <= row ? factor * b : 0.f);
    });
  }
  // The group's rows of `x` times a factor: columns `col` and up of a tensor.
  __device__ __forceinline__ void store_rows(Accumulator<1, kVI>& x, float factor,
                                             const RowTensor& tensor, const Place& place, int col,
                                             int tokens, int width) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    bf16* rows = staged + (P::Warps::index() * 16 + lane / 4) * kLd + P::Warps::part() * kVI * 8;
    for_each_half(x, [&](int half, int c, float a, float b) {
      store_pair(rows + 8 * half * kLd + c, a * factor, b * factor);
    });
    P::Warps::sync();
    VRows::store(staged, tensor.head<bf16>(place.batch, place.head) + col, tensor, tokens,
                 width - col);
  }
};

template <typename P>
using CausalReadoutTiles = CausalBlockTiles<P, 64, 1, 1>;
template <typename P>
using CausalGradientTiles = CausalBlockTiles<P, 32, 2, 2>;

// o = (phi(q) S~ + m_ii tril(phi(q) phi(k)^T) v) * scale. One thread block per (pair, block).
template <typename P>
__global__ void __launch_bounds__(P::kThreads, CausalReadoutTiles<P>::kBlocks)
    packed_readout_block(const LinearArgs args) {
  ptx::begin_after_previous();
  using C = CausalReadoutTiles<P>;
  extern __shared__ __align__(16) unsigned char shared[];
  const C tiles(shared);
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const bf16* v = args.v.head<const bf16>(place.batch, place.head);
  const bf16* mixed = static_cast<const bf16*>(args.mixed) + place.summary * args.entries;
  const int tokens = group_tokens<typename P::Warps>(block, 0);
  const auto start = [&](int col, int stage) {
    if (col < args.dv) {
      C::load_matrix(tiles.matrix(stage, 0), mixed + C::place(col));
      C::VRows::load(tiles.tensor(stage, 0), v + col, args.v, tokens, args.dv - col);
    }
    ptx::copy_commit();
  };
  C::load_rows(tiles, args, place, tokens);
  ptx::copy_commit();
  start(0, 0);
  ptx::copy_wait<1>();
  tiles.make_scores(args, block.count,
                    args.diagonal[place.head * args.diagonal_stride + block.index]);

  const int group_row = P::Warps::index() * 16, col_v = P::Warps::part() * C::kVI * 8;
  int stage = 0;
#pragma unroll 1
  for (int col = 0; col < args.dv; col += C::kCols, stage ^= 1) {
    ptx::copy_wait<0>();
    __syncthreads();  // these columns are there, and the other stage is free
    start(col + C::kCols, stage ^ 1);
    Accumulator<1, C::kVI> o;
    clear(o);
    mma_AB(o, tiles.q + group_row * P::KRows::kLd, P::KRows::kLd, tiles.matrix(stage, 0) + col_v,
           C::kLd, P::DK);
    mma_AB(o, tiles.p + group_row * C::kPLd, C::kPLd, tiles.tensor(stage, 0) + col_v, C::kLd,
           P::kRows);
    tiles.store_rows(o, args.scale, args.o, place, col, tokens, args.dv);
  }
}

// d_q = S~ g + P' phi(k), d_k = dS v + P'^T phi(q), d_v = dS^T phi(k) + P^T d_o, where g is d_o
// times the scale, P = m_ii scale tril(phi(q) phi(k)^T) and P' its gradient, m_ii tril(g v^T). One
// thread block per (pair, block).
template <typename P>
__global__ void __launch_bounds__(P::kThreads, CausalGradientTiles<P>::kBlocks)
    packed_backward_block(const LinearArgs args) {
  ptx::begin_after_previous();
  using C = CausalGradientTiles<P>;
  extern __shared__ __align__(16) unsigned char shared[];
  const C tiles(shared);
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const bf16* v = args.v.head<const bf16>(place.batch, place.head);
  const bf16* d_o = args.d_o.head<const bf16>(place.batch, place.head);
  const bf16* mixed = static_cast<const bf16*>(args.mixed) + place.summary * args.entries;
  const bf16* d_summary = static_cast<const bf16*>(args.d_summaries) + place.summary * args.entries;
  const int tokens = group_tokens<typename P::Warps>(block, 0);
  const auto start = [&](int col, int stage) {
    if (col < args.dv) {
      C::load_matrix(tiles.matrix(stage, 0), mixed + C::place(col));
      C::load_matrix(tiles.matrix(stage, 1), d_summary + C::place(col));
      C::VRows::load(tiles.tensor(stage, 0), v + col, args.v, tokens, args.dv - col);
      C::VRows::load(tiles.tensor(stage, 1), d_o + col, args.d_o, tokens, args.dv - col);
    }
    ptx::copy_commit();
  };
  C::load_rows(tiles, args, place, tokens);
  ptx::copy_commit();
  start(0, 0);
  ptx::copy_wait<1>();
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  tiles.make_scores(args, block.count, weight * args.scale);

  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16;
  const int col_k = P::Warps::part() * P::kKI * 8, col_v = P::Warps::part() * C::kVI * 8;
  const int col_p = P::Warps::part() * C::kPI * 8;
  bf16* q_rows = tiles.q + group_row * P::KRows::kLd;
  bf16* k_rows = tiles.k + group_row * P::KRows::kLd;
  Accumulator<1, P::kKI> dq, dk;
  Accumulator<1, C::kPI> d_scores;
  clear(dq);
  clear(dk);
  clear(d_scores);
  int stage = 0;
#pragma unroll 1
  for (int col = 0; col < args.dv; col += C::kCols, stage ^= 1) {
    ptx::copy_wait<0>();
    __syncthreads();  // these columns are there, and the other stage is free
    start(col + C::kCols, stage ^ 1);
    const bf16 *s = tiles.matrix(stage, 0), *ds = tiles.matrix(stage, 1);
    const bf16 *values = tiles.tensor(stage, 0), *d_tile = tiles.tensor(stage, 1);
    const bf16* d_rows = d_tile + group_row * C::kLd;
    mma_ABt(dq, d_rows, C::kLd, s + col_k * C::kLd, C::kLd, C::kCols);
    mma_ABt(d_scores, d_rows, C::kLd, values + col_p * C::kLd, C::kLd, C::kCols);
    mma_ABt(dk, values + group_row * C::kLd, C::kLd, ds + col_k * C::kLd, C::kLd, C::kCols);
    Accumulator<1, C::kVI> dv;
    clear(dv);
    mma_AB(dv, k_rows, P::KRows::kLd, ds + col_v, C::kLd, P::DK);
    mma_AtB(dv, tiles.p + group_row, C::kPLd, d_tile + col_v, C::kLd, P::kRows);
    if (args.d_v.data != nullptr) {
      tiles.store_rows(dv, 1.f, args.d_v, place, col, tokens, args.dv);
    }
  }
  __syncthreads();

  // Through the scores of the own block.
  float term = 0.f;  // gradient of m_ii
  {
    Accumulator<1, C::kPI> scores;
    tiles.add_scores(scores);
#pragma unroll
    for (int j = 0; j < C::kPI; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = group_row + lane / 4 + e / 2 * 8;
        const int key = col_p + j * 8 + lane % 4 * 2 + e % 2;
        if (key <= row) term += d_scores[0][j][e] * scores[0][j][e];
      }
    }
  }
  tiles.store_triangle(d_scores, weight * args.scale);
#pragma unroll
  for (int j = 0; j < P::kKI; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dq[0][j][e] *= args.scale;
  }
  __syncthreads();
  mma_AB(dq, tiles.p + group_row * C::kPLd, C::kPLd, tiles.k + col_k, P::KRows::kLd, P::kRows);
  mma_AtB(dk, tiles.p + group_row, C::kPLd, tiles.q + col_k, P::KRows::kLd, P::kRows);
  term = ptx::sum_of_warp(term);
  if (lane == 0) tiles.terms[P::warp()] = term;
  __syncthreads();
  const auto store_gradient = [&](Accumulator<1, P::kKI>& gradient, bf16* rows) {
    for_each_half(gradient, [&](int half, int col, float x, float y) {
      bf16* at = rows + (lane / 4 + 8 * half) * P::KRows::kLd + col_k + col;
      const float2 phi = load_pair(at);
      store_pair(at, x * feature_gradient(args.map, phi.x), y * feature_gradient(args.map, phi.y));
    });
  };
  store_gradient(dq, q_rows);
  store_gradient(dk, k_rows);
  P::Warps::sync();
  if (args.d_q.data != nullptr) {
    P::KRows::store(tiles.q, args.d_q.head<bf16>(place.batch, place.head), args.d_q, tokens,
                    args.dk);
  }
  if (args.d_k.data != nullptr) {
    P::KRows::store(tiles.k, args.d_k.head<bf16>(place.batch, place.head), args.d_k, tokens,
                    args.dk);
  }
  if (threadIdx.x == 0) {  // in a fixed order
    float total = 0.f;
    for (int w = 0; w < P::Shape::kWarps; ++w) total += tiles.terms[w];
    const std::int64_t pair = static_cast<std::int64_t>(place.batch) * args.all_heads + place.head;
    args.diagonal_terms[pair * args.q_blocks + place.block] = total * args.scale;
  }
}

}  // namespace mhla::cuda
