// Backward through the read-out: d_q, and the gradients of the mixed summaries and key sums.
#pragma once

#include "mhla/cuda/sm80/linear_tile.cuh"

namespace mhla::cuda {

template <typename L>
constexpr int backward_q_bytes(int stages) {
  return stages * (L::KTile::kBytes + L::VTile::kBytes) + L::kGBytes + L::STile::kBytes +
         L::kVectorBytes + L::kDotBytes + L::kRowBytes;
}

// The gradient of a mixed summary leaves through shared memory, in whole lines.
template <typename L>
__device__ __forceinline__ void store_d_mixed(Accumulator<L::kSumMI, L::kSumNI>& acc,
                                              typename L::G* staged, typename L::G* out) {
  for_each_pair(acc, [&](int row, int col, float x, float y) {
    store_pair(staged + (L::sum_row() + row) * L::STile::kLd + L::sum_col() + col, x, y);
  });
  __syncthreads();
  L::STile::store(staged, out);
}

// Sums over row tiles when dv has several tiles: there are registers for one tile only, so that
// each thread parks its sums in f32. Empty for the usual case.
template <typename L>
struct Carry {
  static constexpr int kSums = L::kSumMI * L::kSumNI * 4;
  static __device__ __forceinline__ float* of(const LinearArgs& args, std::int64_t summary,
                                              int tile_v) {
    return args.carry + ((summary * args.dv_tiles + tile_v) * kSums) * L::kThreads + threadIdx.x;
  }
  template <typename Acc>
  static __device__ __forceinline__ void read(Acc& acc, const float* carry) {
    float* sums = &acc[0][0][0];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = carry[i * L::kThreads];
  }
  template <typename Acc>
  static __device__ __forceinline__ void write(Acc& acc, float* carry) {
    const float* sums = &acc[0][0][0];
#pragma unroll
    for (int i = 0; i < kSums; ++i) carry[i * L::kThreads] = sums[i];
  }
};

// g = d_o * factor, dS~_i = sum of phi(q) g^T, dz~_i = sum of phi(q) e,
// d_q = (S~_i g + e z~_i) * phi'(q), with e the gradient of the row's denominator (spec 1.4).
// One thread block per (pair, block).
template <typename L>
__global__ void __launch_bounds__(L::kThreads) backward_q(const LinearArgs args) {
  ptx::begin_after_previous();
  using In = typename L::In;
  using T = typename L::T;
  using G = typename L::G;
  using KTile = typename L::KTile;
  using VTile = typename L::VTile;
  using GTile = typename L::GTile;
  extern __shared__ __align__(16) unsigned char shared[];
  T* q_tiles = reinterpret_cast<T*>(shared);
  T* d_tiles = q_tiles + args.stages * KTile::kElements;
  G* g_apart = reinterpret_cast<G*>(d_tiles + args.stages * VTile::kElements);
  G* s_tile = reinterpret_cast<G*>(reinterpret_cast<unsigned char*>(g_apart) + L::kGBytes);
  float* z = reinterpret_cast<float*>(s_tile + L::STile::kElements);
  float* dots = z + L::DK;
  float* dots_o = dots + L::kRows * KTile::kPerRow;  // [kRows][kRowN]
  float* factors = dots_o + L::kRows * VTile::kPerRow;
  float* e = factors + L::kRows;

  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const In* q = args.q.head<const In>(place.batch, place.head);
  const In* d_o = args.d_o.head<const In>(place.batch, place.head);
  const std::int64_t summary = place.summary;
  const G* mixed = static_cast<const G*>(args.mixed) + summary * args.entries;
  G* d_mixed = static_cast<G*>(args.d_mixed) + summary * args.entries;
  const bool dot = args.rows == Rows::dot;  // then dv has one tile
  const bool with_rows = args.has_rows;

  // A step is one dv tile of one row tile; with several dv tiles there is one stage.
  const int tiles = (block.count + L::kRows - 1) / L::kRows;
  const int steps = tiles * args.dv_tiles;
  const auto start = [&](int step) {
    const int t = step / args.dv_tiles, j = step % args.dv_tiles, stage = step % args.stages;
    const int first = t * L::kRows, cols = args.dv - j * L::DV;
    if (j == 0) {
      KTile::load(q_tiles + stage * KTile::kElements, q, args.q, block, first, args.dk);
    }
    VTile::load(d_tiles + stage * VTile::kElements, d_o + j * L::DV, args.d_o, block, first, cols);
    if (step == 0 || args.dv_tiles > 1) L::STile::load(s_tile, mixed + j * (L::DK * L::DV));
    ptx::copy_commit();
  };
  if (steps > 0) start(0);
  for (int c = threadIdx.x; c < L::DK; c += L::kThreads) {
    z[c] = with_rows ? args.z_read[summary * L::DK + c] : 0.f;
  }
  __syncthreads();

  Accumulator<L::kSumMI, L::kSumNI> ds;
  Accumulator<1, L::kRowKI> dq;
  clear(ds);
  clear(dq);
  float dz[kChunk<T>] = {};
  for (int step = 0; step < steps; ++step) {
    const int t = step / args.dv_tiles, j = step % args.dv_tiles, stage = step % args.stages;
    const int rows = block.count - t * L::kRows;
    if (args.stages > 1 && step + 1 < steps) start(step + 1);
    else ptx::copy_commit();
    ptx::copy_wait<1>();
    T* q_tile = q_tiles + stage * KTile::kElements;
    T* d_tile = d_tiles + stage * VTile::kElements;

    // phi(q), and the dot product that the factor of a row needs.
    if (j == 0) {
      map_tile<KTile>(q_tile, args.map, rows, args.dk,
                      [&](int row, int col, const float (&x)[kChunk<T>]) {
                        if (!dot) return;
                        float sum = 0.f;
#pragma unroll
                        for (int i = 0; i < kChunk<T>; ++i) sum += x[i] * z[col + i];
                        dots[row * KTile::kPerRow + col / kChunk<T>] = sum;
                      });
    }
    __syncthreads();
    const int r = threadIdx.x;
    if (r < L::kRows) {
      float factor = r < rows ? args.scale : 0.f, gradient = 0.f;
      if (dot) {
        factor = row_factor(args.scale, args.eps, sum_parts(dots, r, KTile::kPerRow));
      } else if (args.rows == Rows::given && r < rows) {
        const std::int64_t at = summary * args.slots + block.slot(t * L::kRows + r);
        factor = args.row_inv[at];
        gradient = with_rows ? args.row_e[at] : 0.f;
      }
      factors[r] = factor;
      e[r] = gradient;
    }
    __syncthreads();

    // g = d_o * factor.
    VTile::transform(d_tile, [&](int row, int col, float (&x)[kChunk<T>]) {
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) x[i] *= factors[row];
      if constexpr (!L::kSameType) {
#pragma unroll
        for (int i = 0; i < kChunk<T>; i += 2) {
          store_pair(g_apart + row * GTile::kLd + col + i, x[i], x[i + 1]);
        }
      }
      return L::kSameType;
    });
    __syncthreads();
    const G* g;
    if constexpr (L::kSameType) g = d_tile;
    else g = g_apart;

    if (args.dv_tiles > 1 && t > 0) Carry<L>::read(ds, Carry<L>::of(args, summary, j));
    mma_AtB(ds, q_tile + L::sum_row(), KTile::kLd, g + L::sum_col(), GTile::kLd, L::kRows);
    const int col0 = L::row_part() * L::kRowKI * 8;
    mma_ABt(dq, g + L::row_row() * GTile::kLd, GTile::kLd, s_tile + col0 * L::STile::kLd,
            L::STile::kLd, L::DV);
    __syncthreads();

    if (args.dv_tiles > 1) {
      if (t + 1 < tiles) {
        Carry<L>::write(ds, Carry<L>::of(args, summary, j));
      } else {
        store_d_mixed<L>(ds, s_tile, d_mixed + j * (L::DK * L::DV));
      }
      clear(ds);
      __syncthreads();
    }
    if (dot) {  // <d_o, o> is phi(q) . (S~ g), with an o that was never rounded
      float sums[2] = {};
      for_each_pair(dq, [&](int row, int col, float x, float y) {
        const float2 phi = load_pair(q_tile + (L::row_row() + row) * KTile::kLd + col0 + col);
        sums[row / 8] += phi.x * x + phi.y * y;
      });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] += ptx::exchange(sums[half], 1);
        sums[half] += ptx::exchange(sums[half], 2);
        const int row = L::row_row() + static_cast<int>(threadIdx.x % 32) / 4 + 8 * half;
        if (threadIdx.x % 4 == 0) dots_o[row * L::kRowN + L::row_part()] = sums[half];
      }
      __syncthreads();
      if (r < L::kRows) e[r] = -factors[r] * sum_parts(dots_o, r, L::kRowN);
      __syncthreads();
    }
    if (j + 1 == args.dv_tiles) {
      if (with_rows) {  // the weighted sum of queries
        KTile::transform(q_tile, [&](int row, int, const float (&x)[kChunk<T>]) {
#pragma unroll
          for (int i = 0; i < kChunk<T>; ++i) dz[i] += e[row] * x[i];
          return false;
        });
        __syncthreads();
      }
      for_each_pair(dq, [&](int row, int col, float& x, float& y) {
        T* at = q_tile + (L::row_row() + row) * KTile::kLd + col0 + col;
        const float2 phi = load_pair(at);
        const float gradient = e[L::row_row() + row];
        store_pair(at, (x + gradient * z[col0 + col]) * feature_gradient(args.map, phi.x),
                   (y + gradient * z[col0 + col + 1]) * feature_gradient(args.map, phi.y));
        x = y = 0.f;
      });
      __syncthreads();
      if (args.d_q.data != nullptr) {
        KTile::store(q_tile, args.d_q.head<In>(place.batch, place.head), args.d_q, block,
                     t * L::kRows, args.dk);
      }
      __syncthreads();
    }
    if (args.stages == 1 && step + 1 < steps) start(step + 1);
  }

  if (args.dv_tiles == 1) store_d_mixed<L>(ds, s_tile, d_mixed);
  if (with_rows) {
    __syncthreads();
    reduce_columns<KTile, L::DK, L::kThreads>(reinterpret_cast<float*>(shared), dz,
                                              args.dz_read + summary * L::DK);
  }
}

}  // namespace mhla::cuda
