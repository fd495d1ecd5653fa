// Denominators that are not one dot product of the query at hand: shared_position, causal, and
// separate denominator inputs. A row is one token; one thread block per (pair, block), lanes over
// the width of q and k. Everything is f32.
#pragma once

#include "mhla/cuda/sm80/linear_tile.cuh"

namespace mhla::cuda {

inline constexpr int kDenWarps = 4;
inline constexpr int kDenThreads = kDenWarps * 32;
inline constexpr int kLaneWidth = 8;  // widths up to 256: 8 columns a lane

// phi of one row, rounded as the tiles round it; lane l holds columns l, l + 32, ...
template <typename T>
__device__ __forceinline__ void load_features(float (&x)[kLaneWidth], const T* row, const Map& map,
                                              int width) {
#pragma unroll
  for (int j = 0; j < kLaneWidth; ++j) {
    const int c = static_cast<int>(threadIdx.x) % 32 + j * 32;
    x[j] = c < width ? to_float(from_float<T>(feature(map, to_float(row[c])))) : 0.f;
  }
}
__device__ __forceinline__ void load_vector(float (&x)[kLaneWidth], const float* from, int width) {
#pragma unroll
  for (int j = 0; j < kLaneWidth; ++j) {
    const int c = static_cast<int>(threadIdx.x) % 32 + j * 32;
    x[j] = c < width ? from[c] : 0.f;
  }
}
__device__ __forceinline__ float dot_of_warp(const float (&x)[kLaneWidth],
                                             const float (&y)[kLaneWidth]) {
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < kLaneWidth; ++j) sum += x[j] * y[j];
  return ptx::sum_of_warp(sum);
}

// Sums a vector over the warps, in order; out has `padded` entries, zero past the width.
__device__ __forceinline__ void reduce_warps(const float (&x)[kLaneWidth], float* out, int padded) {
  __shared__ float scratch[kDenWarps][32 * kLaneWidth];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kLaneWidth; ++j) scratch[warp][lane + j * 32] = x[j];
  __syncthreads();
  for (int c = threadIdx.x; c < padded; c += kDenThreads) {
    float total = 0.f;
    for (int w = 0; w < kDenWarps; ++w) total += scratch[w][c];
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
  float sums[kLaneWidth] = {};
  for (int p = static_cast<int>(threadIdx.x) / 32; p < block.count; p += kDenWarps) {
    float x[kLaneWidth];
    load_features(x, k + block.token(p) * args.k_den.token_stride, args.map, args.dk);
#pragma unroll
    for (int j = 0; j < kLaneWidth; ++j) sums[j] += x[j];
  }
  reduce_warps(sums, args.z + place.summary * args.dk_padded, args.dk_padded);
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
  const int first = warp, step = args.causal ? 1 : kDenWarps;
  if (args.causal && warp > 0) return;
  float z[kLaneWidth], x[kLaneWidth], y[kLaneWidth], running[kLaneWidth] = {};
  load_vector(z, args.z_read + summary * args.dk_padded, args.dk);
  for (int p = first; p < block.count; p += step) {
    const std::int64_t token = block.token(p);
    load_features(x, q + token * args.q_den.token_stride, args.map, args.dk);
    const float base = dot_of_warp(x, z);
    float intra = 0.f;
    if (args.causal) {
      load_features(y, k + token * args.k_den.token_stride, args.map, args.dk);
#pragma unroll
      for (int j = 0; j < kLaneWidth; ++j) running[j] += y[j];
      intra = dot_of_warp(x, running);
    }
    if (threadIdx.x % 32 == 0) {
      const std::int64_t at = summary * args.slots + block.slot(p);
      args.row_base[at] = base;
      if (args.causal) args.row_intra[at] = intra;
    }
  }
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
  const int lane = threadIdx.x % 32;
  for (int p = static_cast<int>(threadIdx.x) / 32; p < block.count; p += kDenWarps) {
    const std::int64_t at = summary * args.slots + block.slot(p);
    float den = args.row_den[at];
    if (args.causal) den += weight * args.row_intra[at];
    float factor = row_factor(args.scale, args.eps, den);
    // As the products of the backward read it: the gradient of a mixing weight is a difference of
    // terms that cancel only if all of them see the same rounded factor.
    if (backward) factor = to_float(from_float<typename SummaryOf<T>::type>(factor));
    float dot = 0.f;
    if (backward) {
      const std::int64_t token = block.token(p);
      for (int c = lane; c < args.dv; c += 32) {
        dot += to_float(o[token * args.o.token_stride + c]) *
               to_float(d_o[token * args.d_o.token_stride + c]);
      }
      dot = ptx::sum_of_warp(dot);
    }
    if (lane == 0) {
      args.row_inv[at] = factor;
      if (backward) args.row_dden[at] = -dot * factor;
    }
  }
}

// Writes one row of a gradient through phi.
template <typename T>
__device__ __forceinline__ void store_gradient(T* row, const float (&phi)[kLaneWidth],
                                               const float (&gradient)[kLaneWidth], const Map& map,
                                               int width) {
#pragma unroll
  for (int j = 0; j < kLaneWidth; ++j) {
    const int c = static_cast<int>(threadIdx.x) % 32 + j * 32;
    if (c < width) row[c] = from_float<T>(gradient[j] * feature_gradient(map, phi[j]));
  }
}

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
  float z[kLaneWidth], x[kLaneWidth], y[kLaneWidth], running[kLaneWidth] = {};
  float dz[kLaneWidth] = {};
  float diagonal = 0.f;
  load_vector(z, args.z_read + summary * args.dk_padded, args.dk);
  for (int p = first; p < block.count; p += step) {
    const std::int64_t token = block.token(p), at = summary * args.slots + block.slot(p);
    const float e = args.row_e[at];
    load_features(x, q + token * args.q_den.token_stride, args.map, args.dk);
    float gradient[kLaneWidth];
#pragma unroll
    for (int j = 0; j < kLaneWidth; ++j) {
      dz[j] += e * x[j];
      gradient[j] = e * z[j];
    }
    if (args.causal) {
      const float dden = args.row_dden[at];
      diagonal += dden * args.row_intra[at];
      load_features(y, k + token * args.k_den.token_stride, args.map, args.dk);
#pragma unroll
      for (int j = 0; j < kLaneWidth; ++j) {
        running[j] += y[j];
        gradient[j] += weight * dden * running[j];
      }
    }
    if (args.d_q_den.data != nullptr) {
      store_gradient(d_q + token * args.d_q_den.token_stride, x, gradient, args.map, args.dk);
    }
  }
  reduce_warps(dz, args.dz_read + summary * args.dk_padded, args.dk_padded);
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
  float gradient[kLaneWidth], x[kLaneWidth], y[kLaneWidth];
  load_vector(gradient, args.dz + summary * args.dk_padded, args.dk);
  for (int n = first; n < block.count; n += step) {
    const int p = block.count - 1 - n;
    const std::int64_t token = block.token(p);
    if (args.causal) {
      const float c = weight * args.row_dden[summary * args.slots + block.slot(p)];
      load_features(y, q + token * args.q_den.token_stride, args.map, args.dk);
#pragma unroll
      for (int j = 0; j < kLaneWidth; ++j) gradient[j] += c * y[j];
    }
    load_features(x, k + token * args.k_den.token_stride, args.map, args.dk);
    store_gradient(d_k + token * args.d_k_den.token_stride, x, gradient, args.map, args.dk);
  }
}

}  // namespace mhla::cuda
