// Products of shared-memory tiles by one warp. Names say the storage: A is [m][k], At is [k][m],
// B is [k][n], Bt is [n][k]. Sums are f32 in the layout of the mma accumulator: lane l holds
// rows l/4 and l/4 + 8, columns 2*(l%4) and the next, of every 16x8 tile.
#pragma once

#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda {

template <int MI, int NI>
using Accumulator = float[MI][NI][4];

template <int MI, int NI>
__device__ __forceinline__ void clear(Accumulator<MI, NI>& acc) {
#pragma unroll
  for (int i = 0; i < MI; ++i)
#pragma unroll
    for (int j = 0; j < NI; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.f;
}

// f(row, col, x, y): two neighbouring sums, for each pair this lane holds.
template <int MI, int NI, typename F>
__device__ __forceinline__ void for_each_pair(Accumulator<MI, NI>& acc, F&& f) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < MI; ++i)
#pragma unroll
    for (int j = 0; j < NI; ++j) {
      const int row = i * 16 + lane / 4, col = j * 8 + (lane % 4) * 2;
      f(row, col, acc[i][j][0], acc[i][j][1]);
      f(row + 8, col, acc[i][j][2], acc[i][j][3]);
    }
}

template <typename T>
inline constexpr bool kIs16Bit = sizeof(T) == 2;

// kAt: a is [k][m]; kBt: b is [n][k]. k is a multiple of 16.
template <bool kAt, bool kBt, typename T, int MI, int NI>
__device__ __forceinline__ void warp_gemm_16bit(Accumulator<MI, NI>& acc, const T* a, int lda,
                                                const T* b, int ldb, int k) {
  static_assert(NI % 2 == 0, "columns are loaded in pairs of tiles");
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int low = lane % 16, high = (lane / 16) * 8;                       // plain A, transposed B
  const int eight = lane % 8 + (lane / 16) * 8, odd = (lane / 8 % 2) * 8;  // the other two
  const T* pa = kAt ? a + eight * lda + odd : a + low * lda + high;
  const T* pb = kBt ? b + eight * ldb + odd : b + low * ldb + high;
  const auto load_a = [&](std::uint32_t (&fa)[4], int step, int i) {
    if constexpr (kAt) ptx::load_matrix_transposed(fa, pa + step * lda + i * 16);
    else ptx::load_matrix(fa, pa + i * 16 * lda + step);
  };
  const auto load_b = [&](std::uint32_t (&fb)[4], int step, int j) {
    if constexpr (kBt) ptx::load_matrix(fb, pb + j * 8 * ldb + step);
    else ptx::load_matrix_transposed(fb, pb + step * ldb + j * 8);
  };
  const auto multiply = [&](int i, int j, const std::uint32_t (&fa)[4],
                            const std::uint32_t (&fb)[4]) {
    if constexpr (std::is_same_v<T, bf16>) {
      ptx::mma_bf16(acc[i][j], fa, fb[0], fb[1]);
      ptx::mma_bf16(acc[i][j + 1], fa, fb[2], fb[3]);
    } else {
      ptx::mma_f16(acc[i][j], fa, fb[0], fb[1]);
      ptx::mma_f16(acc[i][j + 1], fa, fb[2], fb[3]);
    }
  };
  // The smaller operand stays in registers.
#pragma unroll 4
  for (int step = 0; step < k; step += 16) {
    if constexpr (MI * 2 > NI) {
      std::uint32_t fb[NI / 2][4];
#pragma unroll
      for (int j = 0; j < NI; j += 2) load_b(fb[j / 2], step, j);
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        std::uint32_t fa[4];
        load_a(fa, step, i);
#pragma unroll
        for (int j = 0; j < NI; j += 2) multiply(i, j, fa, fb[j / 2]);
      }
    } else {
      std::uint32_t fa[MI][4];
#pragma unroll
      for (int i = 0; i < MI; ++i) load_a(fa[i], step, i);
#pragma unroll
      for (int j = 0; j < NI; j += 2) {
        std::uint32_t fb[4];
        load_b(fb, step, j);
#pragma unroll
        for (int i = 0; i < MI; ++i) multiply(i, j, fa[i], fb);
      }
    }
  }
}

template <bool kAt, bool kBt, typename TA, typename TB, int MI, int NI>
__device__ __forceinline__ void warp_gemm_tf32(Accumulator<MI, NI>& acc, const TA* a, int lda,
                                               const TB* b, int ldb, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const auto at = [&](int m, int kk) {
    return ptx::round_tf32(to_float(kAt ? a[kk * lda + m] : a[m * lda + kk]));
  };
  const auto bt = [&](int kk, int n) {
    return ptx::round_tf32(to_float(kBt ? b[n * ldb + kk] : b[kk * ldb + n]));
  };
#pragma unroll 2
  for (int step = 0; step < k; step += 8) {
    std::uint32_t fa[MI][4];
#pragma unroll
    for (int i = 0; i < MI; ++i) {
      fa[i][0] = at(i * 16 + g, step + t);
      fa[i][1] = at(i * 16 + g + 8, step + t);
      fa[i][2] = at(i * 16 + g, step + t + 4);
      fa[i][3] = at(i * 16 + g + 8, step + t + 4);
    }
#pragma unroll
    for (int j = 0; j < NI; ++j) {
      const std::uint32_t b0 = bt(step + t, j * 8 + g), b1 = bt(step + t + 4, j * 8 + g);
#pragma unroll
      for (int i = 0; i < MI; ++i) ptx::mma_tf32(acc[i][j], fa[i], b0, b1);
    }
  }
}

// Plain f32 arithmetic in the same accumulator layout. Sums of 16 products are added to the total,
// which keeps long sums as exact as the blocked ones of a BLAS.
template <bool kAt, bool kBt, typename TA, typename TB, int MI, int NI>
__device__ __forceinline__ void warp_gemm_f32(Accumulator<MI, NI>& acc, const TA* a, int lda,
                                              const TB* b, int ldb, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int first = 0; first < k; first += 16) {
    Accumulator<MI, NI> sum;
    clear(sum);
#pragma unroll 2
    for (int step = first; step < first + 16; ++step) {
      float va[MI][2];
#pragma unroll
      for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int m = i * 16 + g + e * 8;
          va[i][e] = to_float(kAt ? a[step * lda + m] : a[m * lda + step]);
        }
#pragma unroll
      for (int j = 0; j < NI; ++j) {
        const int n = j * 8 + t * 2;
        const float b0 = to_float(kBt ? b[n * ldb + step] : b[step * ldb + n]);
        const float b1 = to_float(kBt ? b[(n + 1) * ldb + step] : b[step * ldb + n + 1]);
#pragma unroll
        for (int i = 0; i < MI; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            sum[i][j][2 * e] += va[i][e] * b0;
            sum[i][j][2 * e + 1] += va[i][e] * b1;
          }
      }
    }
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
      for (int j = 0; j < NI; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][j][e] += sum[i][j][e];
  }
}

template <bool kAt, bool kBt, typename TA, typename TB, int MI, int NI>
__device__ __forceinline__ void warp_gemm(Accumulator<MI, NI>& acc, const TA* a, int lda,
                                          const TB* b, int ldb, int k) {
  if constexpr (kIs16Bit<TA> && std::is_same_v<TA, TB>) {
    warp_gemm_16bit<kAt, kBt>(acc, a, lda, b, ldb, k);
  } else if constexpr (std::is_same_v<TA, float> && std::is_same_v<TB, float>) {
    warp_gemm_f32<kAt, kBt>(acc, a, lda, b, ldb, k);
  } else {
    warp_gemm_tf32<kAt, kBt>(acc, a, lda, b, ldb, k);
  }
}

template <typename TA, typename TB, int MI, int NI>
__device__ __forceinline__ void mma_AB(Accumulator<MI, NI>& acc, const TA* a, int lda, const TB* b,
                                       int ldb, int k) {
  warp_gemm<false, false>(acc, a, lda, b, ldb, k);
}
template <typename TA, typename TB, int MI, int NI>
__device__ __forceinline__ void mma_ABt(Accumulator<MI, NI>& acc, const TA* a, int lda, const TB* b,
                                        int ldb, int k) {
  warp_gemm<false, true>(acc, a, lda, b, ldb, k);
}
template <typename TA, typename TB, int MI, int NI>
__device__ __forceinline__ void mma_AtB(Accumulator<MI, NI>& acc, const TA* a, int lda, const TB* b,
                                        int ldb, int k) {
  warp_gemm<true, false>(acc, a, lda, b, ldb, k);
}

}  // namespace mhla::cuda
