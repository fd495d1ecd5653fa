// The linear form for f32 inputs in little shared memory.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& lean_kernels_f32(std::int64_t dk) {
  if (dk <= 64) return linear_kernels<float, 64, 32, LeanShape<64, 32>>();
  if (dk <= 128) return linear_kernels<float, 128, 32, LeanShape<128, 32>>();
  return linear_kernels<float, 256, 16, LeanShape<256, 16>>();
}

}  // namespace mhla::cuda
