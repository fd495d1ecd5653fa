// The linear form for f16 inputs in little shared memory.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& lean_kernels_f16(std::int64_t dk) {
  if (dk <= 128) return linear_kernels<f16, 128, 32, LeanShape<128, 32>>();
  return linear_kernels<f16, 256, 32, LeanShape<256, 32>>();
}

}  // namespace mhla::cuda
