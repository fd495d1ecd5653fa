// The first and third pass for bf16 inputs. Key sums and denominators are columns of the same
// tensor-core products that make the summaries and outputs.
#pragma once

#include "mhla/cuda/sm80/packed_tile.cuh"

namespace mhla::cuda {

template <typename P>
constexpr int packed_summaries_bytes(int stages) {
  // NOTE: the sum is staged in the first tiles, which are never smaller.
  static_assert(P::STile::kElements <= P::kKElements + P::kVElements || P::DK > P::kRows);
  const int least = P::STile::kElements - P::kKElements - P::kVElements;
  return 2 * (stages * (P::kKElements + P::kVElements) + (least > 0 ? least : 0));
}

// acc += phi(k)^T v, sums += phi(k)^T 1, over the rows of a tile.
template <typename P>
__device__ __forceinline__ void add_summary(Accumulator<P::kSumMI, P::kSumNI>& acc,
                                            float (&sums)[P::kSumMI][4], bool with_sums,
                                            const bf16* k, const bf16* v) {
  constexpr std::uint32_t kOnes = 0x3f803f80u;  // two bf16 ones
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bf16* pk = k + (lane % 8 + lane / 16 * 8) * P::KRows::kLd + lane / 8 % 2 * 8 + P::sum_row();
  const bf16* pv = v + lane % 16 * P::VRows::kLd + lane / 16 * 8 + P::sum_col();
#pragma unroll
  for (int step = 0; step < P::kRows; step += 16) {
    std::uint32_t a[P::kSumMI][4];
#pragma unroll
    for (int i = 0; i < P::kSumMI; ++i) {
      ptx::load_matrix_transposed(a[i], pk + step * P::KRows::kLd + i * 16);
      if (with_sums) ptx::mma_bf16(sums[i], a[i], kOnes, kOnes);
    }
#pragma unroll
    for (int j = 0; j < P::kSumNI; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix_transposed(b, pv + step * P::VRows::kLd + j * 8);
#pragma unroll
      for (int i = 0; i < P::kSumMI; ++i) {
        ptx::mma_bf16(acc[i][j], a[i], b[0], b[1]);
        ptx::mma_bf16(acc[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// A [DK x DV] sum leaves through shared memory, in whole lines.
template <typename P>
__device__ __forceinline__ void store_summary(Accumulator<P::kSumMI, P::kSumNI>& acc, bf16* staged,
                                              bf16* out, float scale = 1.f) {
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    store_pair(staged + (P::sum_row() + row) * P::STile::kLd + P::sum_col() + col, x * scale,
               y * scale);
  });
  __syncthreads();
  P::STile::store(staged, out);
}

// The key sum, inside the summary or in f32; `sums` holds it in its first columns.
template <typename P>
__device__ __forceinline__ void store_key_sum(const float (&sums)[P::kSumMI][4], bool pair_of_sums,
                                              bf16* inside, float* apart) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane % 4 == 0) {
#pragma unroll
    for (int i = 0; i < P::kSumMI; ++i) {
      const int row = P::sum_row() + i * 16 + lane / 4;
      const float x = sums[i][0] + (pair_of_sums ? sums[i][1] : 0.f);
      const float y = sums[i][2] + (pair_of_sums ? sums[i][3] : 0.f);
      if (inside != nullptr) {
        inside[row] = from_float<bf16>(x);
        inside[row + 8] = from_float<bf16>(y);
      } else {
        apart[row] = x;
        apart[row + 8] = y;
      }
    }
  }
  // Entries that pad the sum take part in the mixing products.
  if (inside != nullptr && P::kSumEntries > P::DK && lane < P::kSumEntries - P::DK &&
      P::sum_row() == 0) {
    inside[P::DK + lane] = bf16{0};
  }
}

// As `summaries` of linear_forward.cuh.
template <typename P>
__global__ void __launch_bounds__(P::kThreads, P::kBlocks) packed_summaries(const LinearArgs args) {
  ptx::begin_after_previous();
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* k_tiles = reinterpret_cast<bf16*>(shared);
  bf16* v_tiles = k_tiles + args.stages * P::kKElements;

  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const int col_v = place.tile_v * P::DV;
  const bf16* k = args.k.head<const bf16>(place.batch, place.head);
  const bf16* v = args.v.head<const bf16>(place.batch, place.head) + col_v;

  const int tiles = (block.count + P::kRows - 1) / P::kRows;
  Accumulator<P::kSumMI, P::kSumNI> acc;
  clear(acc);
  float sums[P::kSumMI][4] = {};
  const bool with_sums = place.tile_v == 0 && P::sum_col() == 0 &&
                         (args.sums_inside || args.z != nullptr);
  Stages stages{args.stages, tiles};
#pragma unroll 1
  for (int t = 0; t < tiles; ++t, stages.advance()) {
    stages.keep_ahead(t, [&](int next, int stage) {
      const int tokens = group_tokens<typename P::Warps>(block, next * P::kRows);
      P::KRows::load(k_tiles + stage * P::kKElements, k, args.k, tokens, args.dk);
      P::VRows::load(v_tiles + stage * P::kVElements, v, args.v, tokens, args.dv - col_v);
    });
    bf16* k_tile = k_tiles + stages.now * P::kKElements;
    P::KRows::map(k_tile, args.map, block.count - t * P::kRows, args.dk);
    __syncthreads();
    add_summary<P>(acc, sums, with_sums, k_tile, v_tiles + stages.now * P::kVElements);
    __syncthreads();
  }

  bf16* out = static_cast<bf16*>(args.summaries) + place.summary * args.entries;
  store_summary<P>(acc, reinterpret_cast<bf16*>(shared), out + place.tile_v * (P::DK * P::DV),
                   args.summary_scale);
  if (with_sums) {
    store_key_sum<P>(sums, false,
                     args.sums_inside ? out + args.dv_tiles * (P::DK * P::DV) : nullptr,
                     args.z + place.summary * P::DK);
  }
}

template <typename P>
constexpr int packed_readout_bytes(int stages) {
  return 2 * (stages * P::kKElements + P::STile::kElements);
}

// Puts a key sum into the first padding column of the summary's tile, where it is column DV of
// the product.
template <typename P>
__device__ __forceinline__ void load_key_sum(bf16* s_tile, const bf16* sum) {
  for_each_of<P::DK, P::kThreads>([&](int c) { s_tile[c * P::STile::kLd + P::DV] = sum[c]; });
}

// acc += a s for the group's rows; den: column DV, in lanes that start a quad.
template <typename P>
__device__ __forceinline__ void read_summary(Accumulator<1, P::kVI>& acc, float (&den)[4],
                                             bool with_den, const bf16* rows, const bf16* s_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bf16* pa = rows + lane % 16 * P::KRows::kLd + lane / 16 * 8;
  const bf16* pb = s_tile + lane % 16 * P::STile::kLd + lane / 16 * 8 +
                   P::Warps::part() * P::kVI * 8;
  const bf16* pz = s_tile + lane % 16 * P::STile::kLd + P::DV;
#pragma unroll
  for (int step = 0; step < P::DK; step += 16) {
    std::uint32_t a[4];
    ptx::load_matrix(a, pa + step);
    if (with_den) {
      std::uint32_t z[2];
      ptx::load_matrix_pair_transposed(z, pz + step * P::STile::kLd);
      ptx::mma_bf16(den, a, z[0], z[1]);
    }
#pragma unroll
    for (int j = 0; j < P::kVI; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix_transposed(b, pb + step * P::STile::kLd + j * 8);
      ptx::mma_bf16(acc[0][j], a, b[0], b[1]);
      ptx::mma_bf16(acc[0][j + 1], a, b[2], b[3]);
    }
  }
}

// As `readout` of linear_forward.cuh.
template <typename P>
__global__ void __launch_bounds__(P::kThreads, P::kReadoutBlocks)
    packed_readout(const LinearArgs args) {
  ptx::begin_after_previous();
  static_assert(P::kVElements <= P::kKElements, "outputs are staged where the queries were");
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* q_tiles = reinterpret_cast<bf16*>(shared);
  bf16* s_tile = q_tiles + args.stages * P::kKElements;

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const int col_v = place.tile_v * P::DV;
  const bf16* q = args.q.head<const bf16>(place.batch, place.head);
  bf16* o = args.o.head<bf16>(place.batch, place.head) + col_v;
  const int tiles = (block.count + P::kRows - 1) / P::kRows;
  if (tiles == 0) return;
  const bf16* mixed = static_cast<const bf16*>(args.mixed) + place.summary * args.entries;
  P::STile::load(s_tile, mixed + place.tile_v * (P::DK * P::DV));
  const bool with_den = args.rows == Rows::dot;
  if (with_den) load_key_sum<P>(s_tile, mixed + args.dv_tiles * (P::DK * P::DV));

  const int lane = static_cast<int>(threadIdx.x % 32), group_row = P::Warps::index() * 16;
  Stages stages{args.stages, tiles};
#pragma unroll 1
  for (int t = 0; t < tiles; ++t, stages.advance()) {
    stages.keep_ahead(t, [&](int next, int stage) {
      P::KRows::load(q_tiles + stage * P::kKElements, q, args.q,
                     group_tokens<typename P::Warps>(block, next * P::kRows), args.dk);
    });
    bf16* q_tile = q_tiles + stages.now * P::kKElements;
    P::KRows::map(q_tile, args.map, block.count - t * P::kRows, args.dk);
    if (t == 0) __syncthreads();  // the summary is there
    else P::Warps::sync();

    Accumulator<1, P::kVI> acc;
    clear(acc);
    float den[4] = {};
    read_summary<P>(acc, den, with_den, q_tile + group_row * P::KRows::kLd, s_tile);

    // Rows lane / 4 and lane / 4 + 8 of the group.
    float factor[2] = {args.scale, args.scale};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (with_den) {
        const float total = args.scale * ptx::broadcast(den[2 * half], lane / 4 * 4) + args.eps;
        factor[half] = total == 0.f ? 0.f : args.scale / total;
      } else if (args.rows == Rows::given) {
        const int position = t * P::kRows + group_row + lane / 4 + 8 * half;
        if (position < block.count) {
          factor[half] = args.row_inv[place.summary * args.slots + block.slot(position)];
        }
      }
    }
    P::Warps::sync();
    // NOTE: in the group's own rows, whose stride differs when dk and dv do.
    bf16* staged = q_tile + group_row * (P::KRows::kLd - P::VRows::kLd);
    bf16* row = staged + (group_row + lane / 4) * P::VRows::kLd + P::Warps::part() * P::kVI * 8;
    for_each_half(acc, [&](int half, int col, float x, float y) {
      store_pair(row + half * 8 * P::VRows::kLd + col, x * factor[half], y * factor[half]);
    });
    P::Warps::sync();
    P::VRows::store(staged, o, args.o, group_tokens<typename P::Warps>(block, t * P::kRows),
                    args.dv - col_v);
    P::Warps::sync();
  }
}

}  // namespace mhla::cuda
