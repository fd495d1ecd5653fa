// The linear form for 16-bit inputs of a few columns, everything but inputs and outputs in f32.
#include "mhla/cuda/sm80/denominators.cuh"
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {
namespace {

// Mixing is that of f32.
template <typename T>
TypeKernels small_type_kernels() {
  TypeKernels kernels = type_kernels_f32();
  kernels.key_sums = key_sums<T>;
  kernels.row_products = row_products<T>;
  kernels.row_factors = row_factors<T>;
  kernels.denominator_backward_q = denominator_backward_q<T>;
  kernels.denominator_backward_k = denominator_backward_k<T>;
  return kernels;
}

}  // namespace

const LinearKernels& linear_kernels_small(bool brain, int widest) {
  if (widest > 32) {
    return brain ? linear_kernels<small_bf16, 64, 64>() : linear_kernels<small_f16, 64, 64>();
  }
  return brain ? linear_kernels<small_bf16, 32, 32>() : linear_kernels<small_f16, 32, 32>();
}
const TypeKernels& type_kernels_small(bool brain) {
  static const TypeKernels kBf16 = small_type_kernels<small_bf16>();
  static const TypeKernels kF16 = small_type_kernels<small_f16>();
  return brain ? kBf16 : kF16;
}

}  // namespace mhla::cuda
