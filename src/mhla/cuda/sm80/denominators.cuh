// Denominators that are not one dot product of the query at hand: shared_position, causal, and
// separate denominator inputs. A row is one token; one thread block per (pair, block), lanes over
// the width of q and k. Everything is f32.
#pragma once

#include "mhla/cuda/sm80/linear_tile.cuh"

namespace mhla::cuda {

inline constexpr int kDenWarps = 4;
inline constexpr int kDenThreads = kDenWarps * 32;
inline constexpr int kDenBatch = 4;  // rows that a warp has in flight

// Columns of a lane: l, l + 32, ... Few where q and k are narrow: idle columns cost instructions.
template <int W>
using LaneRow = float[W];

// Calls f with the number of columns a lane needs, as a constant.
template <typename F>
__device__ __forceinline__ void with_lane_width(int width, F&& f) {
  if (width <= 64) f(std::integral_constant<int, 2>());
  else if (width <= 128) f(std::integral_constant<int, 4>());
  else f(std::integral_constant<int, 8>());
}

// phi of one row; rounded as the tiles round it where the numerator reads the same row, so that the
// two cancel. Separate rows meet no tile.
template <typename T, int W>
__device__ __forceinline__ void load_features(LaneRow<W>& x, const T* row, const LinearArgs& args) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const int c = static_cast<int>(threadIdx.x) % 32 + j * 32;
    x[j] = c < args.dk ? feature(args.map, to_float(row[c])) : 0.f;
    if (args.has_rows) x[j] = to_float(from_float<TileOf<T>>(x[j]));
  }
}
template <int W>
__device__ __forceinline__ void load_vector(LaneRow<W>& x, const float* from, int width) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const int c = static_cast<int>(threadIdx.x) % 32 + j * 32;
    x[j] = c < width ? from[c] : 0.f;
  }
}
template <int W>
__device__ __forceinline__ float dot_of_warp(const LaneRow<W>& x, const LaneRow<W>& y) {
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < W; ++j) sum += x[j] * y[j];
  return ptx::sum_of_warp(sum);
}

// Sums a vector over the warps, in order; out has `padded` entries, zero past the width.
template <int W>
__device__ __forceinline__ void reduce_warps(const LaneRow<W>& x, float* out, int padded) {
  __shared__ float scratch[kDenWarps][32 * 8];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < W; ++j) scratch[warp][lane + j * 32] = x[j];
  __syncthreads();
  for (int c = threadIdx.x; c < padded; c += kDenThreads) {
    float total = 0.f;
    for (int w = 0; w < kDenWarps && c < 32 * W; ++w) total += scratch[w][c];
    out[c] = total;
  }
}

// z_b = sum of phi(k_den) over a block.
template <typename T>
__global__ void __launch_bounds__(kDenThreads) key_sums(const LinearArgs args) {
  ptx::begin_after_previous();
  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const T* k = args.k_den.head<const T>(place.batch, place.head);
  with_lane_width(args.dk_padded, [&](auto lane_width) {
    constexpr int W = decltype(lane_width)::value;
    float sums[W] = {};
#pragma unroll 4
    for (int p = static_cast<int>(threadIdx.x) / 32; p < block.count; p += kDenWarps) {
      float x[W];
      load_features<T, W>(x, k + block.token(p) * args.k_den.token_stride, args);
#pragma unroll
      for (int j = 0; j < W; ++j) sums[j] += x[j];
    }
    reduce_warps<W>(sums, args.z + place.summary * args.dk_padded, args.dk_padded);
  });
}

// row_base = phi(q) . z_read; causal: row_intra = phi(q) . sum of phi(k) up to the same position.
// Slots without a token get zero: they are mixed too.
template <typename T>
__global__ void __launch_bounds__(kDenThreads) row_products(const LinearArgs args) {
  ptx::begin_after_previous();
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const std::int64_t summary = place.summary;
  const T* q = args.q_den.head<const T>(place.batch, place.head);
  const T* k = args.k_den.head<const T>(place.batch, place.head);
  for (int s = threadIdx.x; s < args.slots; s += kDenThreads) {
    args.row_base[summary * args.slots + s] = 0.f;
  }
  __syncthreads();

  // NOTE: a running sum is sequential, so that the causal mask uses one warp of the thread block.
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int step = args.causal ? 1 : kDenWarps;
  if (args.causal && warp > 0) return;
  with_lane_width(args.dk_padded, [&](auto lane_width) {
    constexpr int W = decltype(lane_width)::value;
    float z[W], running[W] = {};
    load_vector<W>(z, args.z_read + summary * args.dk_padded, args.dk);
    for (int first = warp; first < block.count; first += kDenBatch * step) {
      float x[kDenBatch][W], y[kDenBatch][W];
#pragma unroll
      for (int i = 0; i < kDenBatch; ++i) {
        const int p = min(first + i * step, block.count - 1);  // the last again and again
        const std::int64_t token = block.token(p);
        load_features<T, W>(x[i], q + token * args.q_den.token_stride, args);
        if (args.causal) {
          load_features<T, W>(y[i], k + token * args.k_den.token_stride, args);
        }
      }
#pragma unroll
      for (int i = 0; i < kDenBatch; ++i) {
        const int p = first + i * step;
        if (p >= block.count) break;
        const float base = dot_of_warp<W>(x[i], z);
        float intra = 0.f;
        if (args.causal) {
#pragma unroll
          for (int j = 0; j < W; ++j) running[j] += y[i][j];
          intra = dot_of_warp<W>(x[i], running);
        }
        if (threadIdx.x % 32 == 0) {
          const std::int64_t at = summary * args.slots + block.slot(p);
          args.row_base[at] = base;
          if (args.causal) args.row_intra[at] = intra;
        }
      }
    }
  });
}

// row_inv = scale / (scale * denominator + eps); backward: row_dden = -(d_o . o) row_inv.
template <typename T>
__global__ void __launch_bounds__(kDenThreads) row_factors(const LinearArgs args) {
  ptx::begin_after_previous();
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const std::int64_t summary = place.summary;
  const bool backward = args.d_o.data != nullptr;
  const T* o = args.o.head<const T>(place.batch, place.head);
  const T* d_o = args.d_o.head<const T>(place.batch, place.head);
  const float weight = args.causal ? args.diagonal[place.head * args.diagonal_stride + block.index]
                                   : 0.f;
  if (backward) {
    for (int s = threadIdx.x; s < args.slots; s += kDenThreads) {
      args.row_dden[summary * args.slots + s] = 0.f;
    }
    __syncthreads();
  }
  const auto write = [&](std::int64_t at, auto&& dot_of_outputs) {
    float den = args.row_den[at];
    if (args.causal) den += weight * args.row_intra[at];
    const float exact = row_factor(args.scale, args.eps, den);
    // As the products of the backward read it: the gradient of a mixing weight is a difference of
    // terms that cancel only if both see the same rounded factor, once. The other factor of the
    // denominator's term is that of the output, which is not rounded.
    float factor = exact;
    if (backward) factor = to_float(from_float<typename SummaryOf<T>::type>(factor));
    const float dot = dot_of_outputs(exact);
    args.row_inv[at] = factor;
    if (backward) args.row_dden[at] = -dot * factor;
  };
  if (!backward || args.row_dots != nullptr) {  // a thread for each row
    for (int p = threadIdx.x; p < block.count; p += kDenThreads) {
      const std::int64_t at = summary * args.slots + block.slot(p);
      write(at, [&](float exact) {
        float dot = 0.f;
        for (int tile = 0; backward && tile < args.dv_tiles; ++tile) {
          dot += args.row_dots[tile * args.row_count + at];
        }
        return dot * exact;
      });
    }
    return;
  }
  const int lane = threadIdx.x % 32;
  for (int p = static_cast<int>(threadIdx.x) / 32; p < block.count; p += kDenWarps) {
    const std::int64_t token = block.token(p);
    float dot = 0.f;
    for (int c = lane; c < args.dv; c += 32) {
      dot += to_float(o[token * args.o.token_stride + c]) *
             to_float(d_o[token * args.d_o.token_stride + c]);
    }
    dot = ptx::sum_of_warp(dot);
    if (lane == 0) write(summary * args.slots + block.slot(p), [&](float) { return dot; });
  }
}

// Writes one row of a gradient through phi.
template <typename T, int W>
__device__ __forceinline__ void store_gradient(T* row, const LaneRow<W>& phi,
                                               const LaneRow<W>& gradient, const Map& map,
                                               int width) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const int c = static_cast<int>(threadIdx.x) % 32 + j * 32;
    if (c < width) row[c] = from_float<T>(gradient[j] * feature_gradient(map, phi[j]));
  }
}

inline constexpr int kWide = 8;  // columns of a lane, whatever the width

// Separate denominator: d_q_den, the gradient of z_read, and what m_ii gets from inside the block.
template <typename T>
__global__ void __launch_bounds__(kDenThreads) denominator_backward_q(const LinearArgs args) {
  ptx::begin_after_previous();
  const Place place = locate(args, args.q_blocks);
  const DeviceBlock block = args.q_table[place.block];
  const std::int64_t summary = place.summary;
  const T* q = args.q_den.head<const T>(place.batch, place.head);
  const T* k = args.k_den.head<const T>(place.batch, place.head);
  T* d_q = args.d_q_den.head<T>(place.batch, place.head);
  const float weight = args.causal ? args.diagonal[place.head * args.diagonal_stride + block.index]
                                   : 0.f;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first = args.causal && warp > 0 ? block.count : warp;
  const int step = args.causal ? 1 : kDenWarps;
  float z[kWide], x[kWide], y[kWide], running[kWide] = {};
  float dz[kWide] = {};
  float diagonal = 0.f;
  load_vector<kWide>(z, args.z_read + summary * args.dk_padded, args.dk);
  for (int p = first; p < block.count; p += step) {
    const std::int64_t token = block.token(p), at = summary * args.slots + block.slot(p);
    const float e = args.row_e[at];
    load_features<T, kWide>(x, q + token * args.q_den.token_stride, args);
    float gradient[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      dz[j] += e * x[j];
      gradient[j] = e * z[j];
    }
    if (args.causal) {
      const float dden = args.row_dden[at];
      diagonal += dden * args.row_intra[at];
      load_features<T, kWide>(y, k + token * args.k_den.token_stride, args);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        running[j] += y[j];
        gradient[j] += weight * dden * running[j];
      }
    }
    if (args.d_q_den.data != nullptr) {
      store_gradient<T, kWide>(d_q + token * args.d_q_den.token_stride, x, gradient, args.map,
                               args.dk);
    }
  }
  reduce_warps<kWide>(dz, args.dz_read + summary * args.dk_padded, args.dk_padded);
  if (args.causal && threadIdx.x == 0) {
    const std::int64_t pair = static_cast<std::int64_t>(place.batch) * args.all_heads + place.head;
    args.diagonal_terms[pair * args.q_blocks + place.block] += diagonal;
  }
}

// Separate denominator: d_k_den. Causal: a key is seen by the rows at and after its position.
template <typename T>
__global__ void __launch_bounds__(kDenThreads) denominator_backward_k(const LinearArgs args) {
  ptx::begin_after_previous();
  const Place place = locate(args, args.k_blocks);
  const DeviceBlock block = args.k_table[place.block];
  const std::int64_t summary = place.summary;
  const T* q = args.q_den.head<const T>(place.batch, place.head);
  const T* k = args.k_den.head<const T>(place.batch, place.head);
  T* d_k = args.d_k_den.head<T>(place.batch, place.head);
  const float weight = args.causal ? args.diagonal[place.head * args.diagonal_stride + block.index]
                                   : 0.f;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first = args.causal && warp > 0 ? block.count : warp;
  const int step = args.causal ? 1 : kDenWarps;
  float gradient[kWide], x[kWide], y[kWide];
  load_vector<kWide>(gradient, args.dz + summary * args.dk_padded, args.dk);
  for (int n = first; n < block.count; n += step) {
    const int p = block.count - 1 - n;
    const std::int64_t token = block.token(p);
    if (args.causal) {
      const float c = weight * args.row_dden[summary * args.slots + block.slot(p)];
      load_features<T, kWide>(y, q + token * args.q_den.token_stride, args);
#pragma unroll
      for (int j = 0; j < kWide; ++j) gradient[j] += c * y[j];
    }
    load_features<T, kWide>(x, k + token * args.k_den.token_stride, args);
    store_gradient<T, kWide>(d_k + token * args.d_k_den.token_stride, x, gradient, args.map,
                             args.dk);
  }
}

}  // namespace mhla::cuda
