// Backward through the summaries: d_k and d_v.
#pragma once

#include "mhla/cuda/sm80/linear_tile.cuh"

namespace mhla::cuda {

template <typename L>
constexpr int backward_kv_bytes(int stages) {
  return stages * (L::KTile::kBytes + L::VTile::kBytes) + L::STile::kBytes + L::kVectorBytes;
}

// d_v = dS_b^T phi(k), d_k = (dS_b v + dz_b) * phi'(k) (spec 1.4). One thread block per
// (pair, block).
template <typename L>
__global__ void __launch_bounds__(L::kThreads) backward_kv(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using G = typename L::G;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  extern __shared__ __align__(16) unsigned char shared[];
  T* k_tiles = reinterpret_cast<T*>(shared);
  T* v_tiles = k_tiles + args.stages * KTile::kElements;
  G* s_tile = reinterpret_cast<G*>(v_tiles + args.stages * VTile::kElements);
  float* dz = reinterpret_cast<float*>(s_tile + L::STile::kElements);

  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const In* k = args.k.head<const In>(place.batch, place.head);
  const In* v = args.v.head<const In>(place.batch, place.head);
  const std::int64_t summary = place.summary;
  const G* d_summary = static_cast<const G*>(args.d_summaries) + summary * args.entries;

  // A step is one dv tile of one row tile; with several dv tiles there is one stage.
  const int tiles = (block.count + L::kRows - 1) / L::kRows;
  const int steps = tiles * args.dv_tiles;
  const auto start = [&](int step) {
    const int t = step / args.dv_tiles, j = step % args.dv_tiles, stage = step % args.stages;
    if (j == 0) {
      KTile::load(k_tiles + stage * KTile::kElements, k, args.k, block, t * L::kRows, args.dk);
    }
    VTile::load(v_tiles + stage * VTile::kElements, v + j * L::DV, args.v, block, t * L::kRows,
                args.dv - j * L::DV);
    if (step == 0 || args.dv_tiles > 1) L::STile::load(s_tile, d_summary + j * (L::DK * L::DV));
    ptx::copy_commit();
  };
  if (steps == 0) return;
  start(0);
  for (int c = threadIdx.x; c < L::DK; c += L::kThreads) {
    dz[c] = args.has_rows ? args.dz[summary * L::DK + c] : 0.f;
  }

  Accumulator<1, L::kRowKI> dk;
  clear(dk);
  for (int step = 0; step < steps; ++step) {
    const int t = step / args.dv_tiles, j = step % args.dv_tiles, stage = step % args.stages;
    if (args.stages > 1 && step + 1 < steps) start(step + 1);
    else ptx::copy_commit();
    ptx::copy_wait<1>();
    T* k_tile = k_tiles + stage * KTile::kElements;
    T* v_tile = v_tiles + stage * VTile::kElements;
    if (j == 0) map_tile<KTile>(k_tile, args.map, block.count - t * L::kRows, args.dk);
    __syncthreads();

    Accumulator<1, L::kRowVI> dv;
    clear(dv);
    const int col_v = L::row_part() * L::kRowVI * 8, col_k = L::row_part() * L::kRowKI * 8;
    mma_AB(dv, k_tile + L::row_row() * KTile::kLd, KTile::kLd, s_tile + col_v, L::STile::kLd,
           L::DK);
    mma_ABt(dk, v_tile + L::row_row() * VTile::kLd, VTile::kLd, s_tile + col_k * L::STile::kLd,
            L::STile::kLd, L::DV);
    __syncthreads();

    for_each_pair(dv, [&](int row, int col, float x, float y) {
      store_pair(v_tile + (L::row_row() + row) * VTile::kLd + col_v + col, x, y);
    });
    if (j + 1 == args.dv_tiles) {
      for_each_pair(dk, [&](int row, int col, float& x, float& y) {
        T* at = k_tile + (L::row_row() + row) * KTile::kLd + col_k + col;
        const float2 phi = load_pair(at);
        store_pair(at, (x + dz[col_k + col]) * feature_gradient(args.map, phi.x),
                   (y + dz[col_k + col + 1]) * feature_gradient(args.map, phi.y));
        x = y = 0.f;
      });
    }
    __syncthreads();
    if (args.d_v.data != nullptr) {
      VTile::store(v_tile, args.d_v.head<In>(place.batch, place.head) + j * L::DV, args.d_v, block,
                   t * L::kRows, args.dv - j * L::DV);
    }
    if (args.d_k.data != nullptr && j + 1 == args.dv_tiles) {
      KTile::store(k_tile, args.d_k.head<In>(place.batch, place.head), args.d_k, block,
                   t * L::kRows, args.dk);
    }
    __syncthreads();
    if (args.stages == 1 && step + 1 < steps) start(step + 1);
  }
}

}  // namespace mhla::cuda
