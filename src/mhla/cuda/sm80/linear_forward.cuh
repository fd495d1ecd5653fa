// Summaries of key blocks, and the read-out of query blocks: the first and third pass.
#pragma once

#include "mhla/cuda/sm80/linear_tile.cuh"

namespace mhla::cuda {

template <typename L>
constexpr int summaries_bytes(int stages) {
  const int tiles = L::KTile::kBytes + L::VTile::kBytes;
  const int sums = L::KTile::kRowStep * L::kVectorBytes;
  const int least = L::STile::kBytes > sums ? L::STile::kBytes : sums;
  return stages * tiles + (least > tiles ? least - tiles : 0);
}

// S_b = sum of phi(k) v^T and z_b = sum of phi(k) over the tokens of a block (Eq. 3).
// One thread block per (pair, block, dv tile).
template <typename L>
__global__ void __launch_bounds__(L::kThreads) summaries(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  extern __shared__ __align__(16) unsigned char shared[];
  T* k_tiles = reinterpret_cast<T*>(shared);
  T* v_tiles = k_tiles + args.stages * KTile::kElements;

  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const int tile_v = place.tile_v, col_v = tile_v * L::DV;
  const In* k = args.k.head<const In>(place.batch, place.head);
  const In* v = args.v.head<const In>(place.batch, place.head) + col_v;

  const auto start = [&](int t) {
    const int stage = t % args.stages;
    KTile::load(k_tiles + stage * KTile::kElements, k, args.k, block, t * L::kRows, args.dk);
    VTile::load(v_tiles + stage * VTile::kElements, v, args.v, block, t * L::kRows,
                args.dv - col_v);
    ptx::copy_commit();
  };
  const int tiles = (block.count + L::kRows - 1) / L::kRows;
  if (tiles > 0) start(0);

  Accumulator<L::kSumMI, L::kSumNI> acc;
  clear(acc);
  float sums[kChunk<T>] = {};
  for (int t = 0; t < tiles; ++t) {
    // Keep the next tile in flight while this one is worked on.
    if (args.stages > 1 && t + 1 < tiles) start(t + 1);
    else ptx::copy_commit();
    ptx::copy_wait<1>();
    T* k_tile = k_tiles + t % args.stages * KTile::kElements;
    const T* v_tile = v_tiles + t % args.stages * VTile::kElements;
    map_tile<KTile>(k_tile, args.map, block.count - t * L::kRows, args.dk,
                    [&](int, int, const float (&x)[kChunk<T>]) {
#pragma unroll
                      for (int i = 0; i < kChunk<T>; ++i) sums[i] += x[i];
                    });
    __syncthreads();
    mma_AtB(acc, k_tile + L::sum_row(), KTile::kLd, v_tile + L::sum_col(), VTile::kLd, L::kRows);
    __syncthreads();
    if (args.stages == 1 && t + 1 < tiles) start(t + 1);
  }

  // The sum leaves through shared memory, so that it is written in whole lines.
  using G = typename L::G;
  G* staged = reinterpret_cast<G*>(shared);
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    store_pair(staged + (L::sum_row() + row) * L::STile::kLd + L::sum_col() + col, x, y);
  });
  __syncthreads();
  const std::int64_t summary = place.summary;
  L::STile::store(
      staged, static_cast<G*>(args.summaries) + summary * args.entries + tile_v * (L::DK * L::DV));
  if (args.z != nullptr && tile_v == 0) {
    __syncthreads();
    reduce_columns<KTile, L::DK, L::kThreads>(reinterpret_cast<float*>(shared), sums,
                                              args.z + summary * L::DK);
  }
}

template <typename L>
constexpr int readout_bytes(int stages) {
  return stages * L::KTile::kBytes + L::STile::kBytes + L::kVectorBytes + L::kDotBytes +
         L::kRowBytes;
}

// o = phi(q) S~_i, times the factor of the row (Eq. 5). One thread block per (pair, block, dv
// tile).
template <typename L>
__global__ void __launch_bounds__(L::kThreads) readout(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using G = typename L::G;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  static_assert(VTile::kBytes <= KTile::kBytes, "outputs are staged where the queries were");
  extern __shared__ __align__(16) unsigned char shared[];
  T* q_tiles = reinterpret_cast<T*>(shared);
  G* s_tile = reinterpret_cast<G*>(q_tiles + args.stages * KTile::kElements);
  float* z = reinterpret_cast<float*>(s_tile + L::STile::kElements);
  float* dots = z + L::DK;
  float* factors = dots + L::kRows * KTile::kPerRow;

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const int tile_v = place.tile_v, col_v = tile_v * L::DV;
  const In* q = args.q.head<const In>(place.batch, place.head);
  In* o = args.o.head<In>(place.batch, place.head) + col_v;
  const std::int64_t summary = place.summary;

  const auto start = [&](int t) {
    KTile::load(q_tiles + t % args.stages * KTile::kElements, q, args.q, block, t * L::kRows,
                args.dk);
    ptx::copy_commit();
  };
  const int tiles = (block.count + L::kRows - 1) / L::kRows;
  if (tiles == 0) return;
  L::STile::load(s_tile, static_cast<const G*>(args.mixed) + summary * args.entries +
                             tile_v * (L::DK * L::DV));
  start(0);
  if (args.rows == Rows::dot) {
    for (int c = threadIdx.x; c < L::DK; c += L::kThreads) z[c] = args.z_read[summary * L::DK + c];
    __syncthreads();
  }

  for (int t = 0; t < tiles; ++t) {
    if (args.stages > 1 && t + 1 < tiles) start(t + 1);
    else ptx::copy_commit();
    ptx::copy_wait<1>();
    T* q_tile = q_tiles + t % args.stages * KTile::kElements;
    const int rows = block.count - t * L::kRows;
    if (args.rows == Rows::dot) {
      map_tile<KTile>(q_tile, args.map, rows, args.dk,
                      [&](int row, int col, const float (&x)[kChunk<T>]) {
                        float dot = 0.f;
#pragma unroll
                        for (int i = 0; i < kChunk<T>; ++i) dot += x[i] * z[col + i];
                        dots[row * KTile::kPerRow + col / kChunk<T>] = dot;
                      });
    } else {
      map_tile<KTile>(q_tile, args.map, rows, args.dk);
    }
    __syncthreads();

    const int r = threadIdx.x;
    if (r < L::kRows) {
      float factor = args.scale;
      if (args.rows == Rows::dot) {
        factor = row_factor(args.scale, args.eps, sum_parts(dots, r, KTile::kPerRow));
      } else if (args.rows == Rows::given && r < rows) {
        factor = args.row_inv[summary * args.slots + block.slot(t * L::kRows + r)];
      }
      factors[r] = factor;
    }
    Accumulator<1, L::kRowVI> acc;
    clear(acc);
    const int col0 = L::row_part() * L::kRowVI * 8;
    mma_AB(acc, q_tile + L::row_row() * KTile::kLd, KTile::kLd, s_tile + col0, L::STile::kLd,
           L::DK);
    __syncthreads();

    for_each_pair(acc, [&](int row, int col, float x, float y) {
      const float factor = factors[L::row_row() + row];
      store_pair(q_tile + (L::row_row() + row) * VTile::kLd + col0 + col, x * factor, y * factor);
    });
    __syncthreads();
    VTile::store(q_tile, o, args.o, block, t * L::kRows, args.dv - col_v);
    __syncthreads();
    if (args.stages == 1 && t + 1 < tiles) start(t + 1);
  }
}

}  // namespace mhla::cuda
