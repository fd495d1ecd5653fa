// The linear form for bf16 inputs, dk up to 32.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_bf16_32() { return linear_kernels<bf16, 32, 32>(); }

}  // namespace mhla::cuda
