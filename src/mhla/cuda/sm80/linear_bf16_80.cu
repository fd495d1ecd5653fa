// The linear form for bf16 inputs, dk up to 80.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_bf16_80() { return linear_kernels<bf16, 80, 80>(); }

}  // namespace mhla::cuda
