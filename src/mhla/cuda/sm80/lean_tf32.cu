// The linear form for f32 inputs through TF32 in little shared memory.
#include "mhla/cuda/sm80/linear_instance.cuh"
#include "mhla/cuda/sm80/tf32_inputs.cuh"

namespace mhla::cuda {

const LinearKernels& lean_kernels_tf32(std::int64_t dk) {
  if (dk <= 64) return linear_kernels<tf32, 64, 32, LeanShape<64, 32>>();
  if (dk <= 128) return linear_kernels<tf32, 128, 32, LeanShape<128, 32>>();
  return linear_kernels<tf32, 256, 16, LeanShape<256, 16>>();
}

}  // namespace mhla::cuda
