// <d_o, numerator of o> of every row in f32, for gradients of denominators that have kernels of
// their own: the o of the forward was rounded, and what it is compared with in the backward was
// not.
#pragma once

#include "mhla/cuda/sm80/linear_causal.cuh"

namespace mhla::cuda {

template <typename L>
struct RowDotTiles {
  using T = typename L::T;
  T *q, *k, *v, *d_o;
  typename L::G* s;
  float* parts;  // [kRows][kRowN]

  static constexpr int kBytes = 2 * L::KTile::kBytes + 2 * L::VTile::kBytes + L::STile::kBytes +
                                L::kRows * L::kRowN * 4;

  __device__ explicit RowDotTiles(unsigned char* shared) {
    q = reinterpret_cast<T*>(shared);
    k = q + L::KTile::kElements;
    v = k + L::KTile::kElements;
    d_o = v + L::VTile::kElements;
    s = reinterpret_cast<typename L::G*>(d_o + L::VTile::kElements);
    parts = reinterpret_cast<float*>(s + L::STile::kElements);
  }
};

// phi(q) . (S~_i d_o), and for the causal mask m_ii times the scores up to the diagonal times
// d_o v^T: the products that the backward takes apart again. One thread block per (pair, block,
// dv tile).
template <typename L>
__global__ void __launch_bounds__(L::kThreads) row_dots(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  extern __shared__ __align__(16) unsigned char shared[];
  const RowDotTiles<L> tiles(shared);

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const int col_v = place.tile_v * L::DV, cols = args.dv - col_v;
  const In* q = args.q.head<const In>(place.batch, place.head);
  const In* k = args.k.head<const In>(place.batch, place.head);
  const In* v = args.v.head<const In>(place.batch, place.head) + col_v;
  const In* d_o = args.d_o.head<const In>(place.batch, place.head) + col_v;
  const float weight = args.causal ? args.diagonal[place.head * args.diagonal_stride + block.index]
                                   : 0.f;
  const int col_k = L::row_part() * L::kRowKI * 8, col_p = L::row_part() * L::kRowPI * 8;
  const T* q_rows = tiles.q + L::row_row() * KTile::kLd;
  const T* d_rows = tiles.d_o + L::row_row() * VTile::kLd;

  L::STile::load(tiles.s, static_cast<const typename L::G*>(args.mixed) +
                              place.summary * args.entries + place.tile_v * (L::DK * L::DV));
  const int count = (block.count + L::kRows - 1) / L::kRows;
  for (int r = 0; r < count; ++r) {
    const int first = r * L::kRows;
    KTile::load(tiles.q, q, args.q, block, first, args.dk);
    VTile::load(tiles.d_o, d_o, args.d_o, block, first, cols);
    copies_done();
    map_tile<KTile>(tiles.q, args.map, block.count - first, args.dk);
    __syncthreads();
    Accumulator<1, L::kRowKI> product;
    clear(product);
    mma_ABt(product, d_rows, VTile::kLd, tiles.s + col_k * L::STile::kLd, L::STile::kLd, L::DV);
    float sums[2] = {};
    for_each_pair(product, [&](int row, int col, float x, float y) {
      const float2 phi = load_pair(q_rows + row * KTile::kLd + col_k + col);
      sums[row / 8] += phi.x * x + phi.y * y;
    });

    for (int c = 0; args.causal && c <= r; ++c) {
      KTile::load(tiles.k, k, args.k, block, c * L::kRows, args.dk);
      VTile::load(tiles.v, v, args.v, block, c * L::kRows, cols);
      copies_done();
      map_tile<KTile>(tiles.k, args.map, block.count - c * L::kRows, args.dk);
      __syncthreads();
      Accumulator<1, L::kRowPI> scores, d_scores;
      clear(scores);
      clear(d_scores);
      mma_ABt(scores, q_rows, KTile::kLd, tiles.k + col_p * KTile::kLd, KTile::kLd, L::DK);
      mma_ABt(d_scores, d_rows, VTile::kLd, tiles.v + col_p * VTile::kLd, VTile::kLd, L::DV);
      int n = 0;
      const float* d = &d_scores[0][0][0];
      for_each_pair(scores, [&](int row, int col, float x, float y) {
        const int at = first + L::row_row() + row, key = c * L::kRows + col_p + col;
        if (key <= at) sums[row / 8] += weight * x * d[n];
        if (key + 1 <= at) sums[row / 8] += weight * y * d[n + 1];
        n += 2;
      });
      __syncthreads();
    }

    // Lanes of a quad and warps of a row have a part each.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] += ptx::exchange(sums[half], 1);
      sums[half] += ptx::exchange(sums[half], 2);
      const int row = L::row_row() + static_cast<int>(threadIdx.x % 32) / 4 + 8 * half;
      if (threadIdx.x % 4 == 0) tiles.parts[row * L::kRowN + L::row_part()] = sums[half];
    }
    __syncthreads();
    const int row = threadIdx.x;
    if (row < L::kRows && first + row < block.count) {
      args.row_dots[place.tile_v * args.row_count + place.summary * args.slots +
                    block.slot(first + row)] = sum_parts(tiles.parts, row, L::kRowN);
    }
    __syncthreads();
  }
}

}  // namespace mhla::cuda
