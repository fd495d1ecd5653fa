// The causal mask, backward: d_q, d_k, d_v and the gradient of the diagonal mixing weights.
#pragma once

#include "mhla/cuda/sm80/linear_causal.cuh"

namespace mhla::cuda {

// Gradient of the scores of query tile r and key tile c: g v^T over all dv tiles. Ends with g and
// v of the last dv tile in shared memory, all warps past a barrier.
template <typename L>
__device__ __forceinline__ void score_gradients(Accumulator<1, L::kRowPI>& acc,
                                                const LinearArgs& args, const Place& place,
                                                const DeviceBlock& block, int r, int c,
                                                const CausalTiles<L>& tiles) {
  using In = typename L::In;
  using VTile = typename L::VTile;
  const In* v = args.v.head<const In>(place.batch, place.head);
  const In* d_o = args.d_o.head<const In>(place.batch, place.head);
  clear(acc);
  for (int j = 0; j < args.dv_tiles; ++j) {
    const int cols = args.dv - j * L::DV;
    VTile::load(tiles.v, v + j * L::DV, args.v, block, c * L::kRows, cols);
    VTile::load(tiles.d_o, d_o + j * L::DV, args.d_o, block, r * L::kRows, cols);
    copies_done();
    scale_rows<L>(tiles);
    __syncthreads();
    mma_ABt(acc, tiles.g + L::row_row() * L::GTile::kLd, L::GTile::kLd,
            tiles.v + L::row_part() * L::kRowPI * 8 * VTile::kLd, VTile::kLd, L::DV);
    __syncthreads();
  }
}

// Adds the denominator's gradient to the gradients of scores (each score is a summand of it).
template <typename L>
__device__ __forceinline__ void add_rows(Accumulator<1, L::kRowPI>& acc, const float* dden) {
  for_each_pair(acc, [&](int row, int, float& x, float& y) {
    const float gradient = dden[L::row_row() + row];
    x += gradient;
    y += gradient;
  });
}

// As backward_q, plus what passes through the scores of the own block.
template <typename L>
__global__ void __launch_bounds__(L::kThreads) backward_q_causal(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using G = typename L::G;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  extern __shared__ __align__(16) unsigned char shared[];
  const CausalTiles<L> tiles(shared);

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const In* q = args.q.head<const In>(place.batch, place.head);
  const In* k = args.k.head<const In>(place.batch, place.head);
  const In* d_o = args.d_o.head<const In>(place.batch, place.head);
  const std::int64_t summary = place.summary;
  const G* mixed = static_cast<const G*>(args.mixed) + summary * args.entries;
  G* d_mixed = static_cast<G*>(args.d_mixed) + summary * args.entries;
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  const float* z = args.has_rows ? args.z_read + summary * L::DK : nullptr;
  const int col_k = L::row_part() * L::kRowKI * 8;
  // An empty block still writes its zero gradients.
  const int count = max((block.count + L::kRows - 1) / L::kRows, 1);

  float dz[kChunk<T>] = {};
  float diagonal_term = 0.f;
  for (int r = 0; r < count; ++r) {
    const int first = r * L::kRows;
    KTile::load(tiles.q, q, args.q, block, first, args.dk);
    load_rows<L>(args, block, summary, first, true, tiles.factors, tiles.dden);
    if (static_cast<int>(threadIdx.x) < L::kRows) {  // gradient of q . z_read
      const int position = first + static_cast<int>(threadIdx.x);
      tiles.sums[threadIdx.x] = args.has_rows && position < block.count
                                    ? args.row_e[summary * args.slots + block.slot(position)]
                                    : 0.f;
    }
    copies_done();
    __syncthreads();
    map_tile<KTile>(tiles.q, args.map, block.count - first, args.dk,
                    [&](int row, int, const float (&x)[kChunk<T>]) {
#pragma unroll
                      for (int i = 0; i < kChunk<T>; ++i) dz[i] += tiles.sums[row] * x[i];
                    });
    __syncthreads();

    // Through the mixed summary.
    Accumulator<1, L::kRowKI> dq;
    clear(dq);
    for (int j = 0; j < args.dv_tiles; ++j) {
      L::STile::load(tiles.s, mixed + j * (L::DK * L::DV));
      VTile::load(tiles.d_o, d_o + j * L::DV, args.d_o, block, first, args.dv - j * L::DV);
      copies_done();
      scale_rows<L>(tiles);
      __syncthreads();
      Accumulator<L::kSumMI, L::kSumNI> ds;
      clear(ds);
      if (r > 0) Carry<L>::read(ds, Carry<L>::of(args, summary, j));
      mma_AtB(ds, tiles.q + L::sum_row(), KTile::kLd, tiles.g + L::sum_col(), L::GTile::kLd,
              L::kRows);
      mma_ABt(dq, tiles.g + L::row_row() * L::GTile::kLd, L::GTile::kLd,
              tiles.s + col_k * L::STile::kLd, L::STile::kLd, L::DV);
      __syncthreads();
      if (r + 1 < count) Carry<L>::write(ds, Carry<L>::of(args, summary, j));
      else store_d_mixed<L>(ds, tiles.s, d_mixed + j * (L::DK * L::DV));
      __syncthreads();
    }

    // Through the scores of the own block.
    for (int c = 0; c <= r; ++c) {
      KTile::load(tiles.k, k, args.k, block, c * L::kRows, args.dk);
      copies_done();
      map_tile<KTile>(tiles.k, args.map, block.count - c * L::kRows, args.dk);
      Accumulator<1, L::kRowPI> d_scores, scores;
      score_gradients<L>(d_scores, args, place, block, r, c, tiles);
      add_rows<L>(d_scores, tiles.dden);
      clear(scores);
      const int col_p = L::row_part() * L::kRowPI * 8;
      mma_ABt(scores, tiles.q + L::row_row() * KTile::kLd, KTile::kLd, tiles.k + col_p * KTile::kLd,
              KTile::kLd, L::DK);
      int n = 0;
      float* s = &scores[0][0][0];
      for_each_pair(d_scores, [&](int row, int col, float x, float y) {
        const int at = first + L::row_row() + row, key = c * L::kRows + col_p + col;
        if (key <= at) diagonal_term += x * s[n];
        if (key + 1 <= at) diagonal_term += y * s[n + 1];
        n += 2;
      });
      store_scores<L>(d_scores, r, c, weight, tiles.p);
      __syncthreads();
      mma_AB(dq, tiles.p + L::row_row() * L::PTile::kLd, L::PTile::kLd, tiles.k + col_k, KTile::kLd,
             L::kRows);
      __syncthreads();
    }

    for_each_pair(dq, [&](int row, int col, float x, float y) {
      T* at = tiles.q + (L::row_row() + row) * KTile::kLd + col_k + col;
      const float2 phi = load_pair(at);
      if (z != nullptr) {
        const float gradient = tiles.sums[L::row_row() + row];
        x += gradient * z[col_k + col];
        y += gradient * z[col_k + col + 1];
      }
      store_pair(at, x * feature_gradient(args.map, phi.x), y * feature_gradient(args.map, phi.y));
    });
    __syncthreads();
    if (args.d_q.data != nullptr) {
      KTile::store(tiles.q, args.d_q.head<In>(place.batch, place.head), args.d_q, block, first,
                   args.dk);
    }
    __syncthreads();
  }

  // Sums of the whole thread block, in a fixed order.
  float* scratch = reinterpret_cast<float*>(shared);
  if (args.has_rows) {
    reduce_columns<KTile, L::DK, L::kThreads>(scratch, dz, args.dz_read + summary * L::DK);
    __syncthreads();
  }
  diagonal_term = ptx::sum_of_warp(diagonal_term);
  if (threadIdx.x % 32 == 0) scratch[L::warp()] = diagonal_term;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int w = 0; w < L::Shape::kWarps; ++w) total += scratch[w];
    const std::int64_t pair = static_cast<std::int64_t>(place.batch) * args.all_heads + place.head;
    args.diagonal_terms[pair * args.q_blocks + place.block] = total;
  }
}

// As backward_kv, plus what passes through the scores of the own block.
template <typename L>
__global__ void __launch_bounds__(L::kThreads) backward_kv_causal(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using G = typename L::G;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  extern __shared__ __align__(16) unsigned char shared[];
  const CausalTiles<L> tiles(shared);

  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const In* q = args.q.head<const In>(place.batch, place.head);
  const In* k = args.k.head<const In>(place.batch, place.head);
  const In* v = args.v.head<const In>(place.batch, place.head);
  const In* d_o = args.d_o.head<const In>(place.batch, place.head);
  const std::int64_t summary = place.summary;
  const G* d_summary = static_cast<const G*>(args.d_summaries) + summary * args.entries;
  const float weight = args.diagonal[place.head * args.diagonal_stride + block.index];
  const int col_k = L::row_part() * L::kRowKI * 8, col_v = L::row_part() * L::kRowVI * 8;
  const int count = (block.count + L::kRows - 1) / L::kRows;

  for (int c = 0; c < count; ++c) {
    const int first = c * L::kRows;
    KTile::load(tiles.k, k, args.k, block, first, args.dk);
    copies_done();
    map_tile<KTile>(tiles.k, args.map, block.count - first, args.dk);

    // Through the own summary, and d_v through the scores of later rows.
    Accumulator<1, L::kRowKI> dk;
    clear(dk);
    for (int j = 0; j < args.dv_tiles; ++j) {
      const int cols = args.dv - j * L::DV;
      L::STile::load(tiles.s, d_summary + j * (L::DK * L::DV));
      VTile::load(tiles.v, v + j * L::DV, args.v, block, first, cols);
      copies_done();
      __syncthreads();
      Accumulator<1, L::kRowVI> dv;
      clear(dv);
      mma_AB(dv, tiles.k + L::row_row() * KTile::kLd, KTile::kLd, tiles.s + col_v, L::STile::kLd,
             L::DK);
      mma_ABt(dk, tiles.v + L::row_row() * VTile::kLd, VTile::kLd, tiles.s + col_k * L::STile::kLd,
              L::STile::kLd, L::DV);
      __syncthreads();
      for (int r = c; r < count; ++r) {
        KTile::load(tiles.q, q, args.q, block, r * L::kRows, args.dk);
        VTile::load(tiles.d_o, d_o + j * L::DV, args.d_o, block, r * L::kRows, cols);
        load_rows<L>(args, block, summary, r * L::kRows, true, tiles.factors, tiles.dden);
        copies_done();
        map_tile<KTile>(tiles.q, args.map, block.count - r * L::kRows, args.dk);
        __syncthreads();
        scale_rows<L>(tiles);
        Accumulator<1, L::kRowPI> scores;
        clear(scores);
        mma_ABt(scores, tiles.q + L::row_row() * KTile::kLd, KTile::kLd,
                tiles.k + L::row_part() * L::kRowPI * 8 * KTile::kLd, KTile::kLd, L::DK);
        store_scores<L>(scores, r, c, weight, tiles.p);
        __syncthreads();
        mma_AtB(dv, tiles.p + L::row_row(), L::PTile::kLd, tiles.g + col_v, L::GTile::kLd,
                L::kRows);
        __syncthreads();
      }
      for_each_pair(dv, [&](int row, int col, float x, float y) {
        store_pair(tiles.v + (L::row_row() + row) * VTile::kLd + col_v + col, x, y);
      });
      __syncthreads();
      if (args.d_v.data != nullptr) {
        VTile::store(tiles.v, args.d_v.head<In>(place.batch, place.head) + j * L::DV, args.d_v,
                     block, first, cols);
      }
      __syncthreads();
    }

    // d_k through the scores of later rows.
    for (int r = c; r < count; ++r) {
      KTile::load(tiles.q, q, args.q, block, r * L::kRows, args.dk);
      load_rows<L>(args, block, summary, r * L::kRows, true, tiles.factors, tiles.dden);
      copies_done();
      map_tile<KTile>(tiles.q, args.map, block.count - r * L::kRows, args.dk);
      __syncthreads();
      Accumulator<1, L::kRowPI> d_scores;
      score_gradients<L>(d_scores, args, place, block, r, c, tiles);
      add_rows<L>(d_scores, tiles.dden);
      store_scores<L>(d_scores, r, c, weight, tiles.p);
      __syncthreads();
      mma_AtB(dk, tiles.p + L::row_row(), L::PTile::kLd, tiles.q + col_k, KTile::kLd, L::kRows);
      __syncthreads();
    }
    for_each_pair(dk, [&](int row, int col, float x, float y) {
      T* at = tiles.k + (L::row_row() + row) * KTile::kLd + col_k + col;
      const float2 phi = load_pair(at);
      if (args.has_rows) {
        x += args.dz[summary * L::DK + col_k + col];
        y += args.dz[summary * L::DK + col_k + col + 1];
      }
      store_pair(at, x * feature_gradient(args.map, phi.x), y * feature_gradient(args.map, phi.y));
    });
    __syncthreads();
    if (args.d_k.data != nullptr) {
      KTile::store(tiles.k, args.d_k.head<In>(place.batch, place.head), args.d_k, block, first,
                   args.dk);
    }
    __syncthreads();
  }
}

}  // namespace mhla::cuda
