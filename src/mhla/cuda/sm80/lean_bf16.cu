// The linear form for bf16 inputs in little shared memory.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& lean_kernels_bf16(std::int64_t dk) {
  if (dk <= 128) return linear_kernels<bf16, 128, 64, LeanShape<128, 64>>();
  return linear_kernels<bf16, 256, 32, LeanShape<256, 32>>();
}

}  // namespace mhla::cuda
