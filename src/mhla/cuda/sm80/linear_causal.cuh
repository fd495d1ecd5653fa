// The causal mask, forward: what a query reads of its own block is a triangle of scores.
#pragma once

#include "mhla/cuda/sm80/linear_backward_q.cuh"

namespace mhla::cuda {

// Shared memory of the causal kernels: one tile of each kind.
template <typename L>
struct CausalTiles {
  using T = typename L::T;
  using G = typename L::G;
  T *q, *k, *v, *d_o;
  G *g, *s, *p;
  float *factors, *dden, *sums;

  static constexpr int kBytes = 2 * L::KTile::kBytes + 2 * L::VTile::kBytes + L::kGBytes +
                                L::STile::kBytes + L::PTile::kBytes + L::kRowBytes;

  __device__ explicit CausalTiles(unsigned char* shared) {
    q = reinterpret_cast<T*>(shared);
    k = q + L::KTile::kElements;
    v = k + L::KTile::kElements;
    d_o = v + L::VTile::kElements;
    unsigned char* rest = reinterpret_cast<unsigned char*>(d_o + L::VTile::kElements);
    if constexpr (L::kSameType) g = d_o;
    else g = reinterpret_cast<G*>(rest);
    s = reinterpret_cast<G*>(rest + L::kGBytes);
    p = s + L::STile::kElements;
    factors = reinterpret_cast<float*>(p + L::PTile::kElements);
    dden = factors + L::kRows;
    sums = dden + L::kRows;
  }
};

__device__ __forceinline__ void copies_done() {
  ptx::copy_commit();
  ptx::copy_wait<0>();
}

// Factors and denominator gradients of the rows of a tile.
template <typename L>
__device__ __forceinline__ void load_rows(const LinearArgs& args, const DeviceBlock& block,
                                          std::int64_t summary, int first, bool gradients,
                                          float* factors, float* dden) {
  const int r = threadIdx.x;
  if (r >= L::kRows) return;
  const bool valid = first + r < block.count;
  const bool given = valid && args.rows == Rows::given;
  const std::int64_t at = summary * args.slots + (given ? block.slot(first + r) : 0);
  factors[r] = given ? args.row_inv[at] : valid ? args.scale : 0.f;
  dden[r] = given && gradients && args.has_rows ? args.row_dden[at] : 0.f;
}

// g = d_o * factor, where the products expect it.
template <typename L>
__device__ __forceinline__ void scale_rows(const CausalTiles<L>& tiles) {
  using T = typename L::T;
  L::VTile::transform(tiles.d_o, [&](int row, int col, float (&x)[kChunk<T>]) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[i] *= tiles.factors[row];
    if constexpr (!L::kSameType) {
#pragma unroll
      for (int i = 0; i < kChunk<T>; i += 2) {
        store_pair(tiles.g + row * L::GTile::kLd + col + i, x[i], x[i + 1]);
      }
    }
    return L::kSameType;
  });
}

// Stores weight * scores of query tile r and key tile c, zero above the diagonal: [query][key].
template <typename L>
__device__ __forceinline__ void store_scores(Accumulator<1, L::kRowPI>& acc, int r, int c,
                                             float weight, typename L::G* p) {
  const int col0 = L::row_part() * L::kRowPI * 8;
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    const int s = r * L::kRows + L::row_row() + row, t = c * L::kRows + col0 + col;
    store_pair(p + (L::row_row() + row) * L::PTile::kLd + col0 + col, t <= s ? x * weight : 0.f,
               t + 1 <= s ? y * weight : 0.f);
  });
}

// o = (phi(q) S~_i + m_ii tril(phi(q) phi(k)^T) v) * factor, S~_i over earlier blocks (spec 1.7).
// One thread block per (pair, block, dv tile).
template <typename L>
__global__ void __launch_bounds__(L::kThreads) readout_causal(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using G = typename L::G;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  extern __shared__ __align__(16) unsigned char shared[];
  const CausalTiles<L> tiles(shared);

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const int tile_v = place.tile_v, col_v = tile_v * L::DV, cols = args.dv - col_v;
  const In* q = args.q.head<const In>(place.batch, place.head);
  const In* k = args.k.head<const In>(place.batch, place.head);
  const In* v = args.v.head<const In>(place.batch, place.head) + col_v;
  const std::int64_t summary = place.summary;
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  const int col0 = L::row_part() * L::kRowVI * 8;

  L::STile::load(tiles.s, static_cast<const G*>(args.mixed) + summary * args.entries +
                              tile_v * (L::DK * L::DV));
  const int count = (block.count + L::kRows - 1) / L::kRows;
  for (int r = 0; r < count; ++r) {
    // What earlier blocks contribute.
    KTile::load(tiles.q, q, args.q, block, r * L::kRows, args.dk);
    KTile::load(tiles.k, k, args.k, block, 0, args.dk);
    VTile::load(tiles.v, v, args.v, block, 0, cols);
    copies_done();
    map_tile<KTile>(tiles.q, args.map, block.count - r * L::kRows, args.dk);
    map_tile<KTile>(tiles.k, args.map, block.count, args.dk);
    load_rows<L>(args, block, summary, r * L::kRows, false, tiles.factors, tiles.dden);
    __syncthreads();
    Accumulator<1, L::kRowVI> acc;
    clear(acc);
    mma_AB(acc, tiles.q + L::row_row() * KTile::kLd, KTile::kLd, tiles.s + col0, L::STile::kLd,
           L::DK);

    // What this block contributes, up to the diagonal.
    for (int c = 0; c <= r; ++c) {
      if (c > 0) {
        KTile::load(tiles.k, k, args.k, block, c * L::kRows, args.dk);
        VTile::load(tiles.v, v, args.v, block, c * L::kRows, cols);
        copies_done();
        map_tile<KTile>(tiles.k, args.map, block.count - c * L::kRows, args.dk);
        __syncthreads();
      }
      Accumulator<1, L::kRowPI> scores;
      clear(scores);
      mma_ABt(scores, tiles.q + L::row_row() * KTile::kLd, KTile::kLd,
              tiles.k + L::row_part() * L::kRowPI * 8 * KTile::kLd, KTile::kLd, L::DK);
      store_scores<L>(scores, r, c, weight, tiles.p);
      __syncthreads();
      mma_AB(acc, tiles.p + L::row_row() * L::PTile::kLd, L::PTile::kLd, tiles.v + col0, VTile::kLd,
             L::kRows);
      __syncthreads();
    }

    for_each_pair(acc, [&](int row, int col, float x, float y) {
      const float factor = tiles.factors[L::row_row() + row];
      store_pair(tiles.d_o + (L::row_row() + row) * VTile::kLd + col0 + col, x * factor,
                 y * factor);
    });
    __syncthreads();
    VTile::store(tiles.d_o, args.o.head<In>(place.batch, place.head) + col_v, args.o, block,
                 r * L::kRows, cols);
    __syncthreads();
  }
}

}  // namespace mhla::cuda
