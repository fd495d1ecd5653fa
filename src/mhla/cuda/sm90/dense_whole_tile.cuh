// Tensors of the whole-head backward in shared memory: 256 rows of 64 columns (128 bytes), whose
// 16-byte chunks are swizzled over the banks, then 256 rows of the 8 or 32 columns past 64, if any.
//
// NOTE: unswizzled core matrices would do for the products, but a copied row then falls apart into
// 16-byte writes, which keep the shared memory busier than the products do.
#pragma once

#include "mhla/cuda/sm90/bulk_copy.cuh"
#include "mhla/cuda/sm90/dense_whole.h"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kWholeTiles = kWholeRows / kTile;

template <int D, int kRows = kWholeRows>
struct WholeTensor {
  static_assert(D == 64 || D == 72 || D == 96);
  static constexpr int kRest = D - 64, kRestChunks = kRest / 8;
  using Main = SwizzledTile<64>;
  using Rest = SwizzledTile<kRest == 0 ? 8 : kRest>;
  static constexpr int kMainBytes = kRows * Main::kRowBytes, kBytes = kRows * D * 2;
  static constexpr int kSteps = (D + 15) / 16;  // of 16 columns
  std::uint32_t at;                             // a multiple of 1024, for products

  // Address of a chunk of 8 columns.
  __device__ __forceinline__ std::uint32_t chunk(int row, int index) const {
    if (index >= 8) return at + kMainBytes + Rest::chunk(row, index - 8);
    return at + Main::chunk(row, index);
  }
  // Operands from a row on, a multiple of 8. Inner dimension = columns 16 * step and on; eight
  // columns past 64 are read twice, the other factor is zero there.
  __device__ __forceinline__ Operand columns_inner(int row, int step) const {
    return step < 4 ? Main::columns_inner(main(row), step)
                    : Rest::columns_inner(rest(row), step - 4);
  }
  // Inner dimension = 16 rows, outer = 64 columns or those past them.
  __device__ __forceinline__ Operand rows_inner(int row) const {
    return Main::tokens_inner(main(row), 0);
  }
  __device__ __forceinline__ Operand rows_inner_rest(int row) const {
    return Rest::tokens_inner(rest(row), 0);
  }

 private:
  __device__ __forceinline__ std::uint32_t main(int row) const {
    return at + row * Main::kRowBytes;
  }
  __device__ __forceinline__ std::uint32_t rest(int row) const {
    return at + kMainBytes + row * Rest::kRowBytes;
  }
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
    for (int s = 0; s < D / 16; ++s) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(step[s][0]), "=r"(step[s][1]), "=r"(step[s][2]), "=r"(step[s][3])
                   : "r"(tensor.chunk(row, 2 * s + lane / 16))
                   : "memory");
    }
    if constexpr (D % 16 != 0) load_rest(step[D / 16], tensor, first);
  }
  // Eight columns past 64, beside zeros.
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
  __device__ __forceinline__ std::uint32_t all_bits() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4 * WholeTensor<D>::kSteps; ++i) bits |= step[i / 4][i % 4];
    return bits;
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
// The same with the rows in shared memory; rest: their eight columns past 64, where D is 72.
template <typename T, int D, int kSize>
__device__ __forceinline__ void issue_shared_scores(float (&d)[kSize], const WholeTensor<D>& rows,
                                                    int row, const std::uint32_t (&rest)[4],
                                                    const WholeTensor<D>& tensor, int first) {
  wgmma_shared<T, false>(d, rows.columns_inner(row, 0), tensor.columns_inner(first, 0));
#pragma unroll
  for (int i = 1; i < D / 16; ++i) {
    wgmma_shared<T, true>(d, rows.columns_inner(row, i), tensor.columns_inner(first, i));
  }
  if constexpr (D % 16 != 0) {
    wgmma<T, 2 * kSize, false, true>(d, rest, tensor.columns_inner(first, D / 16));
  }
}

// A gradient of 64 rows, in accumulators.
template <int D>
struct WholeSum {
  static constexpr int kRest = WholeTensor<D>::kRest, kRestSize = kRest == 0 ? 4 : kRest / 2;
  float main[32] = {}, rest[kRestSize] = {};

  // += a[64 x 16] times 16 rows of a tensor
  template <typename T>
  __device__ __forceinline__ void issue(const std::uint32_t (&a)[4], const WholeTensor<D>& tensor,
                                        int row) {
    wgmma<T, 64, true, true>(main, a, tensor.rows_inner(row));
    if constexpr (kRest > 0) wgmma<T, kRest, true, true>(rest, a, tensor.rows_inner_rest(row));
  }
  __device__ __forceinline__ float operator[](int i) const {
    return i < 32 ? main[i % 32] : rest[i % kRestSize];
  }
};

}  // namespace mhla::cuda::sm90
