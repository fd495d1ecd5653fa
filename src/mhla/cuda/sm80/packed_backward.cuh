// The backward passes over queries and over keys for bf16 inputs, one dv tile.
#pragma once

#include "mhla/cuda/sm80/packed_forward.cuh"

namespace mhla::cuda {

// d_q leaves through one tile of its own.
template <typename P>
constexpr int packed_backward_q_bytes(int stages) {
  return 2 * (stages * (P::kKElements + P::kVElements) + P::kKElements + P::STile::kElements) +
         4 * P::DK + 2 * 3 * P::kRows + 2 * 4 * P::kRN * P::kRows;
}

// The sum over a row, of which each lane of a quad and each warp of the group has a part. Parts of
// warps meet in `parts` [kRN][rows]; calls must be a barrier of the group apart.
template <typename P>
__device__ __forceinline__ void sum_rows(float (&x)[2], float* parts) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    x[half] += ptx::exchange(x[half], 1);
    x[half] += ptx::exchange(x[half], 2);
  }
  if constexpr (P::kRN > 1) {
    const int lane = static_cast<int>(threadIdx.x % 32), row = P::Warps::index() * 16 + lane / 4;
    if (lane % 4 == 0) {
      parts[P::Warps::part() * P::kRows + row] = x[0];
      parts[P::Warps::part() * P::kRows + row + 8] = x[1];
    }
    P::Warps::sync();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x[half] = 0.f;
#pragma unroll
      for (int part = 0; part < P::kRN; ++part) {
        x[half] += parts[part * P::kRows + row + 8 * half];
      }
    }
  }
}

// ds += phi(q)^T diag(factor) d_o and dz += phi(q)^T e over the rows of a tile. e comes as the sum
// of two bf16 numbers, which end in the first two columns of dz.
template <typename P>
__device__ __forceinline__ void add_gradient(Accumulator<P::kSumMI, P::kSumNI>& ds,
                                             float (&dz)[P::kSumMI][4], bool with_e, const bf16* q,
                                             const bf16* d_o, const bf16* factors,
                                             const bf16* e_high, const bf16* e_low) {
  const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4, g = lane / 4;
  const bf16* pq = q + (lane % 8 + lane / 16 * 8) * P::KRows::kLd + lane / 8 % 2 * 8 + P::sum_row();
  const bf16* pd = d_o + lane % 16 * P::VRows::kLd + lane / 16 * 8 + P::sum_col();
  const auto word = [](const bf16* p) { return *reinterpret_cast<const std::uint32_t*>(p); };
#pragma unroll
  for (int step = 0; step < P::kRows; step += 16) {
    const std::uint32_t f0 = word(factors + step + 2 * t), f1 = word(factors + step + 2 * t + 8);
    std::uint32_t e0 = 0, e1 = 0;
    if (with_e && g < 2) {
      const bf16* e = g == 0 ? e_high : e_low;
      e0 = word(e + step + 2 * t);
      e1 = word(e + step + 2 * t + 8);
    }
    std::uint32_t a[P::kSumMI][4];
#pragma unroll
    for (int i = 0; i < P::kSumMI; ++i) {
      ptx::load_matrix_transposed(a[i], pq + step * P::KRows::kLd + i * 16);
      if (with_e) ptx::mma_bf16(dz[i], a[i], e0, e1);
      constexpr std::uint32_t kZero = 0x80008000u;  // minus zero keeps the sign of a zero product
      a[i][0] = ptx::fma_bf16x2(a[i][0], f0, kZero);
      a[i][1] = ptx::fma_bf16x2(a[i][1], f0, kZero);
      a[i][2] = ptx::fma_bf16x2(a[i][2], f1, kZero);
      a[i][3] = ptx::fma_bf16x2(a[i][3], f1, kZero);
    }
#pragma unroll
    for (int j = 0; j < P::kSumNI; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix_transposed(b, pd + step * P::VRows::kLd + j * 8);
#pragma unroll
      for (int i = 0; i < P::kSumMI; ++i) {
        ptx::mma_bf16(ds[i][j], a[i], b[0], b[1]);
        ptx::mma_bf16(ds[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// As `backward_q` of linear_backward_q.cuh.
template <typename P>
__global__ void __launch_bounds__(P::kThreads, P::kBackwardQBlocks)
    packed_backward_q(const LinearArgs args) {
  ptx::begin_after_previous();
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* q_tiles = reinterpret_cast<bf16*>(shared);
  bf16* d_tiles = q_tiles + args.stages * P::kKElements;
  bf16* staged = d_tiles + args.stages * P::kVElements;  // d_q on its way out
  bf16* s_tile = staged + P::kKElements;
  float* z = reinterpret_cast<float*>(s_tile + P::STile::kElements);
  bf16* factors = reinterpret_cast<bf16*>(z + P::DK);
  bf16* e_high = factors + P::kRows;
  bf16* e_low = e_high + P::kRows;
  float* den_parts = reinterpret_cast<float*>(e_low + P::kRows);
  float* dot_parts = den_parts + P::kRN * P::kRows;

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const bf16* q = args.q.head<const bf16>(place.batch, place.head);
  const bf16* d_o = args.d_o.head<const bf16>(place.batch, place.head);
  const bf16* mixed = static_cast<const bf16*>(args.mixed) + place.summary * args.entries;
  bf16* d_mixed = static_cast<bf16*>(args.d_mixed) + place.summary * args.entries;
  const bool dot = args.rows == Rows::dot;

  const int tiles = (block.count + P::kRows - 1) / P::kRows;
  P::STile::load(s_tile, mixed);
  for_each_of<P::DK, P::kThreads>([&](int c) {
    z[c] = dot             ? to_float(mixed[P::DK * P::DV + c])
           : args.has_rows ? args.z_read[place.summary * P::DK + c]
                           : 0.f;
  });

  Accumulator<P::kSumMI, P::kSumNI> ds;
  clear(ds);
  float dz[P::kSumMI][4] = {};
  const bool with_e = args.has_rows && P::sum_col() == 0;
  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16;
  Stages stages{args.stages, tiles};
#pragma unroll 1
  for (int t = 0; t < tiles; ++t, stages.advance()) {
    stages.keep_ahead(t, [&](int next, int stage) {
      const int tokens = group_tokens<typename P::Warps>(block, next * P::kRows);
      P::KRows::load(q_tiles + stage * P::kKElements, q, args.q, tokens, args.dk);
      P::VRows::load(d_tiles + stage * P::kVElements, d_o, args.d_o, tokens, args.dv);
    });
    const int stage = stages.now;
    bf16* q_tile = q_tiles + stage * P::kKElements;
    const bf16* d_tile = d_tiles + stage * P::kVElements;
    P::KRows::map(q_tile, args.map, block.count - t * P::kRows, args.dk);
    if (t == 0) __syncthreads();  // the summary is there
    else P::Warps::sync();

    // S~ d_o: times phi(q) it gives <d_o, o> / factor, with an o that was never rounded.
    Accumulator<1, P::kKI> dq;
    clear(dq);
    const int col0 = P::Warps::part() * P::kKI * 8;
    mma_ABt(dq, d_tile + group_row * P::VRows::kLd, P::VRows::kLd, s_tile + col0 * P::STile::kLd,
            P::STile::kLd, P::DV);
    const int at = (group_row + lane / 4) * P::KRows::kLd + col0;
    const bf16* phi_row = q_tile + at;
    float den[2] = {}, product[2] = {};
    if (dot) {
      for_each_half(dq, [&](int half, int col, float x, float y) {
        const float2 phi = load_pair(phi_row + half * 8 * P::KRows::kLd + col);
        den[half] += phi.x * z[col0 + col] + phi.y * z[col0 + col + 1];
        product[half] += phi.x * x + phi.y * y;
      });
      sum_rows<P>(den, den_parts);
      sum_rows<P>(product, dot_parts);
    }

    // Factor and denominator gradient of rows lane / 4 and lane / 4 + 8 of the group.
    float factor[2], e[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4, position = t * P::kRows + group_row + row + 8 * half;
      factor[half] = position < block.count ? args.scale : 0.f;
      e[half] = 0.f;
      if (dot) {
        const float total = args.scale * den[half] + args.eps;
        factor[half] = total == 0.f || position >= block.count ? 0.f : args.scale / total;
        e[half] = -factor[half] * factor[half] * product[half];
      } else if (args.rows == Rows::given && position < block.count) {
        const std::int64_t slot = place.summary * args.slots + block.slot(position);
        factor[half] = args.row_inv[slot];
        e[half] = args.has_rows ? args.row_e[slot] : 0.f;
      }
      if (lane % 4 == 0 && P::Warps::part() == 0) {
        const int r = group_row + row + 8 * half;
        factors[r] = from_float<bf16>(factor[half]);
        // NOTE: the gradient of a mixing weight is a difference of what dS~ and dz~ give. They
        // cancel only if both see the same rounded factor.
        const float rounded = to_float(factors[r]);
        const float ratio = factor[half] == 0.f ? 0.f : rounded / factor[half];
        const float x = dot ? e[half] * ratio : e[half];
        const bf16 high_part = from_float<bf16>(x);
        e_high[r] = high_part;
        e_low[r] = from_float<bf16>(x - to_float(high_part));
      }
    }

    // d_q = (S~ d_o * factor + e z) * phi'(q).
    for_each_half(dq, [&](int half, int col, float x, float y) {
      const float2 phi = load_pair(phi_row + half * 8 * P::KRows::kLd + col);
      x = (x * factor[half] + e[half] * z[col0 + col]) * feature_gradient(args.map, phi.x);
      y = (y * factor[half] + e[half] * z[col0 + col + 1]) * feature_gradient(args.map, phi.y);
      store_pair(staged + at + half * 8 * P::KRows::kLd + col, x, y);
    });
    __syncthreads();  // factors of all rows, phi(q) of all rows, staged rows
    if (args.d_q.data != nullptr) {
      P::KRows::store(staged, args.d_q.head<bf16>(place.batch, place.head), args.d_q,
                      group_tokens<typename P::Warps>(block, t * P::kRows), args.dk);
    }
    add_gradient<P>(ds, dz, with_e, q_tile, d_tile, factors, e_high, e_low);
    __syncthreads();
  }

  __syncthreads();
  store_summary<P>(ds, s_tile, d_mixed);
  if (with_e) {
    store_key_sum<P>(dz, true, dot ? d_mixed + P::DK * P::DV : nullptr,
                     args.dz_read + place.summary * P::DK);
  }
}

template <typename P>
constexpr int packed_backward_kv_bytes(int stages) {
  return 2 * (stages * (P::kKElements + P::kVElements) + P::STile::kElements) + 4 * P::DK;
}

// As `backward_kv` of linear_backward_kv.cuh.
template <typename P>
__global__ void __launch_bounds__(P::kThreads, P::kBackwardKvBlocks)
    packed_backward_kv(const LinearArgs args) {
  ptx::begin_after_previous();
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* k_tiles = reinterpret_cast<bf16*>(shared);
  bf16* v_tiles = k_tiles + args.stages * P::kKElements;
  bf16* s_tile = v_tiles + args.stages * P::kVElements;
  float* dz = reinterpret_cast<float*>(s_tile + P::STile::kElements);

  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const bf16* k = args.k.head<const bf16>(place.batch, place.head);
  const bf16* v = args.v.head<const bf16>(place.batch, place.head);
  const bf16* d_summary = static_cast<const bf16*>(args.d_summaries) + place.summary * args.entries;
  const int tiles = (block.count + P::kRows - 1) / P::kRows;
  if (tiles == 0) return;
  P::STile::load(s_tile, d_summary);
  for_each_of<P::DK, P::kThreads>([&](int c) {
    dz[c] = !args.has_rows     ? 0.f
            : args.sums_inside ? to_float(d_summary[P::DK * P::DV + c])
                               : args.dz[place.summary * P::DK + c];
  });

  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16;
  const int col_k = P::Warps::part() * P::kKI * 8, col_v = P::Warps::part() * P::kVI * 8;
  Stages stages{args.stages, tiles};
#pragma unroll 1
  for (int t = 0; t < tiles; ++t, stages.advance()) {
    stages.keep_ahead(t, [&](int next, int stage) {
      const int tokens = group_tokens<typename P::Warps>(block, next * P::kRows);
      P::KRows::load(k_tiles + stage * P::kKElements, k, args.k, tokens, args.dk);
      P::VRows::load(v_tiles + stage * P::kVElements, v, args.v, tokens, args.dv);
    });
    bf16* k_tile = k_tiles + stages.now * P::kKElements;
    bf16* v_tile = v_tiles + stages.now * P::kVElements;
    P::KRows::map(k_tile, args.map, block.count - t * P::kRows, args.dk);
    if (t == 0) __syncthreads();  // the summary is there
    else P::Warps::sync();

    Accumulator<1, P::kVI> dv;
    Accumulator<1, P::kKI> dk;
    clear(dv);
    clear(dk);
    bf16* k_rows = k_tile + group_row * P::KRows::kLd;
    bf16* v_rows = v_tile + group_row * P::VRows::kLd;
    mma_AB(dv, k_rows, P::KRows::kLd, s_tile + col_v, P::STile::kLd, P::DK);
    mma_ABt(dk, v_rows, P::VRows::kLd, s_tile + col_k * P::STile::kLd, P::STile::kLd, P::DV);
    P::Warps::sync();

    for_each_half(dv, [&](int half, int col, float x, float y) {
      store_pair(v_rows + (lane / 4 + half * 8) * P::VRows::kLd + col_v + col, x, y);
    });
    for_each_half(dk, [&](int half, int col, float x, float y) {
      bf16* at = k_rows + (lane / 4 + half * 8) * P::KRows::kLd + col_k + col;
      const float2 phi = load_pair(at);
      store_pair(at, (x + dz[col_k + col]) * feature_gradient(args.map, phi.x),
                 (y + dz[col_k + col + 1]) * feature_gradient(args.map, phi.y));
    });
    P::Warps::sync();
    const int tokens = group_tokens<typename P::Warps>(block, t * P::kRows);
    if (args.d_v.data != nullptr) {
      P::VRows::store(v_tile, args.d_v.head<bf16>(place.batch, place.head), args.d_v, tokens,
                      args.dv);
    }
    if (args.d_k.data != nullptr) {
      P::KRows::store(k_tile, args.d_k.head<bf16>(place.batch, place.head), args.d_k, tokens,
                      args.dk);
    }
    P::Warps::sync();
  }
}

}  // namespace mhla::cuda
