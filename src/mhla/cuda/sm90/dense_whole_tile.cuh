// Tensors of the whole-head backward in shared memory: 256 rows of 64 columns (128 bytes), whose
// 16-byte chunks are swizzled over the banks, then 256 rows of the eight columns past 64, if any.
//
// NOTE: unswizzled core matrices would do for the products, but a copied row then falls apart into
// 16-byte writes, which keep the shared memory busier than the products do.
#pragma once

#include "mhla/cuda/sm90/dense_whole.h"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kWholeTiles = kWholeRows / kTile;

template <int D>
struct WholeTensor {
  static_assert(D == 64 || D == 72);
  static constexpr int kRest = D - 64, kRowBytes = 128, kMainBytes = kWholeRows * kRowBytes;
  static constexpr int kBytes = kMainBytes + kWholeRows * kRest * 2;
  static constexpr int kSteps = 4 + (kRest > 0 ? 1 : 0);  // of 16 columns
  std::uint32_t at;                                       // a multiple of 1024

  // Address of a chunk of 8 columns.
  __device__ __forceinline__ std::uint32_t chunk(int row, int index) const {
    if (index >= 8) return at + kMainBytes + row * 16;
    return at + row * kRowBytes + ((index ^ (row % 8)) * 16);
  }
  // Operands from a row on, a multiple of 8. Inner dimension = columns 16 * step and on; the eight
  // columns past 64 are read twice, the other factor is zero there.
  __device__ __forceinline__ Operand columns_inner(int row, int step) const {
    if (step == 4) return {(at + kMainBytes + row * 16) >> 4, 128 >> 4};
    return {(at + row * kRowBytes + step * 32) >> 4, kSwizzled};
  }
  // Inner dimension = 16 rows, outer = 64 columns or the eight past them.
  __device__ __forceinline__ Operand rows_inner(int row) const {
    return {((at + row * kRowBytes) >> 4) + (1024 >> 4 << 16), kSwizzled};
  }
  __device__ __forceinline__ Operand rows_inner_rest(int row) const {
    return {((at + kMainBytes + row * 16) >> 4) + (128 >> 4 << 16), 128 >> 4};
  }

 private:
  static constexpr std::uint32_t kSwizzled = 1024 >> 4 | 1u << 30;
};

// Rows of a tensor in registers, 16 for each warp of a warpgroup; a thread holds rows `lane / 4`
// and `lane / 4 + 8`, and of every 8 columns the pair 2 * (lane % 4).
template <int D>
struct WholeFragments {
  std::uint32_t step[WholeTensor<D>::kSteps][4];

  __device__ __forceinline__ void load(const WholeTensor<D>& tensor, int first) {
    const int lane = threadIdx.x % 32;
    const int row = first + threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(step[s][0]), "=r"(step[s][1]), "=r"(step[s][2]), "=r"(step[s][3])
                   : "r"(tensor.chunk(row, 2 * s + lane / 16))
                   : "memory");
    }
    if constexpr (D > 64) load_rest(step[4], tensor, first);
  }
  // The eight columns past 64, beside zeros.
  static __device__ __forceinline__ void load_rest(std::uint32_t (&a)[4],
                                                   const WholeTensor<D>& tensor, int first) {
    const int row = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(a[0]), "=r"(a[1])
                 : "r"(tensor.chunk(row, 8))
                 : "memory");
    a[2] = a[3] = 0;
  }
  __device__ __forceinline__ std::uint32_t pair(int group, int row) const {
    return step[group / 2][group % 2 * 2 + row];
  }
};

// d[64 x kN] = rows times the columns of a tensor from row `first` on, transposed.
template <typename T, int D, int kSize>
__device__ __forceinline__ void issue_whole_scores(float (&d)[kSize], const WholeFragments<D>& rows,
                                                   const WholeTensor<D>& tensor, int first) {
  wgmma<T, 2 * kSize, false, false>(d, rows.step[0], tensor.columns_inner(first, 0));
#pragma unroll
  for (int i = 1; i < WholeTensor<D>::kSteps; ++i) {
    wgmma<T, 2 * kSize, false, true>(d, rows.step[i], tensor.columns_inner(first, i));
  }
}
// The same with the rows in shared memory; rest: their eight columns past 64.
template <typename T, int D, int kSize>
__device__ __forceinline__ void issue_shared_scores(float (&d)[kSize], const WholeTensor<D>& rows,
                                                    int row, const std::uint32_t (&rest)[4],
                                                    const WholeTensor<D>& tensor, int first) {
  wgmma_shared<T, false>(d, rows.columns_inner(row, 0), tensor.columns_inner(first, 0));
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    wgmma_shared<T, true>(d, rows.columns_inner(row, i), tensor.columns_inner(first, i));
  }
  if constexpr (D > 64) {
    wgmma<T, 2 * kSize, false, true>(d, rest, tensor.columns_inner(first, 4));
  }
}

// A gradient of 64 rows, in accumulators.
template <int D>
struct WholeSum {
  float main[32] = {}, rest[4] = {};

  // += a[64 x 16] times 16 rows of a tensor
  template <typename T>
  __device__ __forceinline__ void issue(const std::uint32_t (&a)[4], const WholeTensor<D>& tensor,
                                        int row) {
    wgmma<T, 64, true, true>(main, a, tensor.rows_inner(row));
    if constexpr (D > 64) wgmma<T, 8, true, true>(rest, a, tensor.rows_inner_rest(row));
  }
  __device__ __forceinline__ float operator[](int i) const {
    return i < 32 ? main[i % 32] : rest[i % 4];
  }
};

}  // namespace mhla::cuda::sm90
