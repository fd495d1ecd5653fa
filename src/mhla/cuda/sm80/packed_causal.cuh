// The causal kernels for bf16 inputs and blocks of one row tile: queries, keys and the triangle of
// scores of a block are in shared memory at once.
#pragma once

#include "mhla/cuda/sm80/packed_backward.cuh"

namespace mhla::cuda {

// Tiles of a block, and what depends on the rows.
template <typename P>
struct PackedCausalTiles {
  static constexpr int kPLd = P::kRows + 8;
  static constexpr int kPI = P::kRows / 8 / P::kRN;  // score columns of a warp, in eights
  bf16 *q, *k, *v, *d_o, *s, *p;                     // p: [query][key]
  float *factors, *dden;
  bf16 *factors_bf16, *e_high, *e_low;

  static constexpr int kReadoutBytes = 2 * (2 * P::kKElements + P::kVElements +
                                            P::STile::kElements + P::kRows * kPLd) +
                                       P::kRows * (2 * 4 + 3 * 2);
  static constexpr int kBytes = kReadoutBytes + 2 * P::kVElements;  // d_o: backward only
  static_assert(kReadoutBytes % 16 == 0);

  __device__ explicit PackedCausalTiles(unsigned char* shared) {
    q = reinterpret_cast<bf16*>(shared);
    k = q + P::kKElements;
    v = k + P::kKElements;
    s = v + P::kVElements;
    p = s + P::STile::kElements;
    factors = reinterpret_cast<float*>(p + P::kRows * kPLd);
    dden = factors + P::kRows;
    factors_bf16 = reinterpret_cast<bf16*>(dden + P::kRows);
    e_high = factors_bf16 + P::kRows;
    e_low = e_high + P::kRows;
    d_o = reinterpret_cast<bf16*>(shared + kReadoutBytes);
  }

  // The factor of each row, and the gradients of its denominator.
  __device__ __forceinline__ void load_rows(const LinearArgs& args, const DeviceBlock& block,
                                            std::int64_t summary, bool gradients) const {
    const int r = static_cast<int>(threadIdx.x);
    if (r >= P::kRows) return;
    const bool valid = r < block.count, given = valid && args.rows == Rows::given;
    const std::int64_t at = summary * args.slots + (given ? block.slot(r) : 0);
    factors[r] = given ? args.row_inv[at] : valid ? args.scale : 0.f;
    if (!gradients) return;
    dden[r] = given && args.has_rows ? args.row_dden[at] : 0.f;
    const float e = given && args.has_rows ? args.row_e[at] : 0.f;
    factors_bf16[r] = from_float<bf16>(factors[r]);
    e_high[r] = from_float<bf16>(e);
    e_low[r] = from_float<bf16>(e - to_float(e_high[r]));
  }
};

// The group's rows of weight * tril(x) * factor + weight * tril(1) * add, into p.
template <typename P>
__device__ __forceinline__ void store_triangle(Accumulator<1, PackedCausalTiles<P>::kPI>& x,
                                               const PackedCausalTiles<P>& tiles, float weight,
                                               const float (&factor)[2], const float (&add)[2]) {
  using C = PackedCausalTiles<P>;
  const int lane = static_cast<int>(threadIdx.x % 32), row0 = P::Warps::index() * 16 + lane / 4;
  const int col0 = P::Warps::part() * C::kPI * 8;
  for_each_half(x, [&](int half, int col, float a, float b) {
    const int row = row0 + 8 * half, key = col0 + col;
    store_pair(tiles.p + row * C::kPLd + key,
               key <= row ? weight * (a * factor[half] + add[half]) : 0.f,
               key + 1 <= row ? weight * (b * factor[half] + add[half]) : 0.f);
  });
}

// o = (phi(q) S~_i + m_ii tril(phi(q) phi(k)^T) v) * factor. One thread block per
// (pair, block, dv tile).
template <typename P>
__global__ void __launch_bounds__(P::kThreads, P::kSmall ? 4 : 2)
    packed_readout_causal(const LinearArgs args) {
  ptx::begin_after_previous();
  using C = PackedCausalTiles<P>;
  extern __shared__ __align__(16) unsigned char shared[];
  const C tiles(shared);
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const int col_v = place.tile_v * P::DV;
  const int tokens = group_tokens<typename P::Warps>(block, 0);
  P::KRows::load(tiles.q, args.q.head<const bf16>(place.batch, place.head), args.q, tokens,
                 args.dk);
  P::KRows::load(tiles.k, args.k.head<const bf16>(place.batch, place.head), args.k, tokens,
                 args.dk);
  P::VRows::load(tiles.v, args.v.head<const bf16>(place.batch, place.head) + col_v, args.v, tokens,
                 args.dv - col_v);
  P::STile::load(tiles.s, static_cast<const bf16*>(args.mixed) + place.summary * args.entries +
                              place.tile_v * (P::DK * P::DV));
  ptx::copy_commit();
  tiles.load_rows(args, block, place.summary, false);
  ptx::copy_wait<0>();
  P::KRows::map(tiles.q, args.map, block.count, args.dk);
  P::KRows::map(tiles.k, args.map, block.count, args.dk);
  __syncthreads();

  // Scores of the group's rows, then both products into one sum.
  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16;
  bf16* q_rows = tiles.q + group_row * P::KRows::kLd;
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  Accumulator<1, C::kPI> scores;
  clear(scores);
  mma_ABt(scores, q_rows, P::KRows::kLd, tiles.k + P::Warps::part() * C::kPI * 8 * P::KRows::kLd,
          P::KRows::kLd, P::DK);
  store_triangle<P>(scores, tiles, weight, {1.f, 1.f}, {0.f, 0.f});
  Accumulator<1, P::kVI> acc;
  clear(acc);
  float den[4];
  read_summary<P>(acc, den, false, q_rows, tiles.s);
  P::Warps::sync();
  const int col0 = P::Warps::part() * P::kVI * 8;
  mma_AB(acc, tiles.p + group_row * C::kPLd, C::kPLd, tiles.v + col0, P::VRows::kLd, P::kRows);
  P::Warps::sync();

  bf16* staged = tiles.q + group_row * (P::KRows::kLd - P::VRows::kLd);
  for_each_half(acc, [&](int half, int col, float x, float y) {
    const int row = group_row + lane / 4 + 8 * half;
    const float factor = tiles.factors[row];
    store_pair(staged + row * P::VRows::kLd + col0 + col, x * factor, y * factor);
  });
  P::Warps::sync();
  P::VRows::store(staged, args.o.head<bf16>(place.batch, place.head) + col_v, args.o, tokens,
                  args.dv - col_v);
}

// As `backward_q_causal` of linear_causal_backward.cuh.
template <typename P>
__global__ void __launch_bounds__(P::kThreads, P::kSmall ? 2 : 1)
    packed_backward_q_causal(const LinearArgs args) {
  ptx::begin_after_previous();
  using C = PackedCausalTiles<P>;
  extern __shared__ __align__(16) unsigned char shared[];
  const C tiles(shared);
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const bf16* v = args.v.head<const bf16>(place.batch, place.head);
  const bf16* d_o = args.d_o.head<const bf16>(place.batch, place.head);
  const bf16* mixed = static_cast<const bf16*>(args.mixed) + place.summary * args.entries;
  bf16* d_mixed = static_cast<bf16*>(args.d_mixed) + place.summary * args.entries;
  const int tokens = group_tokens<typename P::Warps>(block, 0);
  P::KRows::load(tiles.q, args.q.head<const bf16>(place.batch, place.head), args.q, tokens,
                 args.dk);
  P::KRows::load(tiles.k, args.k.head<const bf16>(place.batch, place.head), args.k, tokens,
                 args.dk);
  tiles.load_rows(args, block, place.summary, true);

  // Through the mixed summary, one dv tile after another; g v^T on the way.
  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16;
  const int col_k = P::Warps::part() * P::kKI * 8, col_p = P::Warps::part() * C::kPI * 8;
  bf16* q_rows = tiles.q + group_row * P::KRows::kLd;
  const bf16* d_rows = tiles.d_o + group_row * P::VRows::kLd;
  Accumulator<1, P::kKI> dq;
  Accumulator<1, C::kPI> d_scores;
  clear(dq);
  clear(d_scores);
  float dz[P::kSumMI][4] = {};
  const bool with_e = args.has_rows && P::sum_col() == 0;
  for (int j = 0; j < args.dv_tiles; ++j) {
    P::VRows::load(tiles.v, v + j * P::DV, args.v, tokens, args.dv - j * P::DV);
    P::VRows::load(tiles.d_o, d_o + j * P::DV, args.d_o, tokens, args.dv - j * P::DV);
    P::STile::load(tiles.s, mixed + j * (P::DK * P::DV));
    ptx::copy_commit();
    ptx::copy_wait<0>();
    if (j == 0) {
      P::KRows::map(tiles.q, args.map, block.count, args.dk);
      P::KRows::map(tiles.k, args.map, block.count, args.dk);
    }
    __syncthreads();
    mma_ABt(dq, d_rows, P::VRows::kLd, tiles.s + col_k * P::STile::kLd, P::STile::kLd, P::DV);
    mma_ABt(d_scores, d_rows, P::VRows::kLd, tiles.v + col_p * P::VRows::kLd, P::VRows::kLd, P::DV);
    Accumulator<P::kSumMI, P::kSumNI> ds;
    clear(ds);
    add_gradient<P>(ds, dz, with_e && j == 0, tiles.q, tiles.d_o, tiles.factors_bf16, tiles.e_high,
                    tiles.e_low);
    __syncthreads();
    store_summary<P>(ds, tiles.s, d_mixed + j * (P::DK * P::DV));
    __syncthreads();
  }
  if (with_e) store_key_sum<P>(dz, true, nullptr, args.dz_read + place.summary * P::DK);

  // Through the scores of the own block.
  const int row0 = group_row + lane / 4;
  const float factor[2] = {tiles.factors[row0], tiles.factors[row0 + 8]};
  const float add[2] = {tiles.dden[row0], tiles.dden[row0 + 8]};
  Accumulator<1, C::kPI> scores;
  clear(scores);
  mma_ABt(scores, q_rows, P::KRows::kLd, tiles.k + col_p * P::KRows::kLd, P::KRows::kLd, P::DK);
  float term = 0.f;  // gradient of m_ii
#pragma unroll
  for (int j = 0; j < C::kPI; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row0 + e / 2 * 8, key = col_p + j * 8 + lane % 4 * 2 + e % 2;
      if (key <= row) {
        term += (d_scores[0][j][e] * factor[e / 2] + add[e / 2]) * scores[0][j][e];
      }
    }
  }
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  store_triangle<P>(d_scores, tiles, weight, factor, add);
#pragma unroll
  for (int j = 0; j < P::kKI; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dq[0][j][e] *= factor[e / 2];
  }
  P::Warps::sync();
  mma_AB(dq, tiles.p + group_row * C::kPLd, C::kPLd, tiles.k + col_k, P::KRows::kLd, P::kRows);
  P::Warps::sync();
  const float* z = args.has_rows ? args.z_read + place.summary * P::DK : nullptr;
  const float e[2] = {to_float(tiles.e_high[row0]) + to_float(tiles.e_low[row0]),
                      to_float(tiles.e_high[row0 + 8]) + to_float(tiles.e_low[row0 + 8])};
  for_each_half(dq, [&](int half, int col, float x, float y) {
    bf16* at = q_rows + (lane / 4 + 8 * half) * P::KRows::kLd + col_k + col;
    const float2 phi = load_pair(at);
    if (z != nullptr) {
      x += e[half] * z[col_k + col];
      y += e[half] * z[col_k + col + 1];
    }
    store_pair(at, x * feature_gradient(args.map, phi.x), y * feature_gradient(args.map, phi.y));
  });
  P::Warps::sync();
  if (args.d_q.data != nullptr) {
    P::KRows::store(tiles.q, args.d_q.head<bf16>(place.batch, place.head), args.d_q, tokens,
                    args.dk);
  }

  // The term of the whole block, in a fixed order, where other warps have read their denominators.
  term = ptx::sum_of_warp(term);
  __syncthreads();
  if (lane == 0) tiles.dden[P::warp()] = term;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int w = 0; w < P::Shape::kWarps; ++w) total += tiles.dden[w];
    const std::int64_t pair = static_cast<std::int64_t>(place.batch) * args.all_heads + place.head;
    args.diagonal_terms[pair * args.q_blocks + place.block] = total;
  }
}

// As `backward_kv_causal` of linear_causal_backward.cuh.
template <typename P>
__global__ void __launch_bounds__(P::kThreads, 2) packed_backward_kv_causal(const LinearArgs args) {
  ptx::begin_after_previous();
  using C = PackedCausalTiles<P>;
  extern __shared__ __align__(16) unsigned char shared[];
  const C tiles(shared);
  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const bf16* v = args.v.head<const bf16>(place.batch, place.head);
  const bf16* d_o = args.d_o.head<const bf16>(place.batch, place.head);
  const bf16* d_summary = static_cast<const bf16*>(args.d_summaries) + place.summary * args.entries;
  const int tokens = group_tokens<typename P::Warps>(block, 0);
  P::KRows::load(tiles.q, args.q.head<const bf16>(place.batch, place.head), args.q, tokens,
                 args.dk);
  P::KRows::load(tiles.k, args.k.head<const bf16>(place.batch, place.head), args.k, tokens,
                 args.dk);
  tiles.load_rows(args, block, place.summary, true);

  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16,
            row0 = group_row + lane / 4;
  const int col_k = P::Warps::part() * P::kKI * 8, col_v = P::Warps::part() * P::kVI * 8;
  const int col_p = P::Warps::part() * C::kPI * 8;
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  bf16* k_rows = tiles.k + group_row * P::KRows::kLd;
  bf16* v_rows = tiles.v + group_row * P::VRows::kLd;
  Accumulator<1, P::kKI> dk;
  Accumulator<1, C::kPI> d_scores;
  clear(dk);
  clear(d_scores);
  for (int j = 0; j < args.dv_tiles; ++j) {
    P::VRows::load(tiles.v, v + j * P::DV, args.v, tokens, args.dv - j * P::DV);
    P::VRows::load(tiles.d_o, d_o + j * P::DV, args.d_o, tokens, args.dv - j * P::DV);
    P::STile::load(tiles.s, d_summary + j * (P::DK * P::DV));
    ptx::copy_commit();
    ptx::copy_wait<0>();
    if (j == 0) {
      P::KRows::map(tiles.q, args.map, block.count, args.dk);
      P::KRows::map(tiles.k, args.map, block.count, args.dk);
    }
    __syncthreads();
    if (j == 0) {  // scores, each row times its factor: what d_o is multiplied with
      Accumulator<1, C::kPI> scores;
      clear(scores);
      mma_ABt(scores, tiles.q + group_row * P::KRows::kLd, P::KRows::kLd,
              tiles.k + col_p * P::KRows::kLd, P::KRows::kLd, P::DK);
      store_triangle<P>(scores, tiles, weight, {tiles.factors[row0], tiles.factors[row0 + 8]},
                        {0.f, 0.f});
    }
    mma_ABt(d_scores, tiles.d_o + group_row * P::VRows::kLd, P::VRows::kLd,
            tiles.v + col_p * P::VRows::kLd, P::VRows::kLd, P::DV);
    Accumulator<1, P::kVI> dv;
    clear(dv);
    mma_AB(dv, k_rows, P::KRows::kLd, tiles.s + col_v, P::STile::kLd, P::DK);
    mma_ABt(dk, v_rows, P::VRows::kLd, tiles.s + col_k * P::STile::kLd, P::STile::kLd, P::DV);
    __syncthreads();
    mma_AtB(dv, tiles.p + group_row, C::kPLd, tiles.d_o + col_v, P::VRows::kLd, P::kRows);
    for_each_half(dv, [&](int half, int col, float x, float y) {
      store_pair(v_rows + (lane / 4 + 8 * half) * P::VRows::kLd + col_v + col, x, y);
    });
    P::Warps::sync();
    if (args.d_v.data != nullptr) {
      P::VRows::store(tiles.v, args.d_v.head<bf16>(place.batch, place.head) + j * P::DV, args.d_v,
                      tokens, args.dv - j * P::DV);
    }
    __syncthreads();
  }

  // d_k through the scores of the own block.
  store_triangle<P>(d_scores, tiles, weight, {tiles.factors[row0], tiles.factors[row0 + 8]},
                    {tiles.dden[row0], tiles.dden[row0 + 8]});
  __syncthreads();
  mma_AtB(dk, tiles.p + group_row, C::kPLd, tiles.q + col_k, P::KRows::kLd, P::kRows);
  P::Warps::sync();
  const float* dz = args.has_rows ? args.dz + place.summary * P::DK : nullptr;
  for_each_half(dk, [&](int half, int col, float x, float y) {
    bf16* at = k_rows + (lane / 4 + 8 * half) * P::KRows::kLd + col_k + col;
    const float2 phi = load_pair(at);
    if (dz != nullptr) {
      x += dz[col_k + col];
      y += dz[col_k + col + 1];
    }
    store_pair(at, x * feature_gradient(args.map, phi.x), y * feature_gradient(args.map, phi.y));
  });
  P::Warps::sync();
  if (args.d_k.data != nullptr) {
    P::KRows::store(tiles.k, args.d_k.head<bf16>(place.batch, place.head), args.d_k, tokens,
                    args.dk);
  }
}

}  // namespace mhla::cuda
