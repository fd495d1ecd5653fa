// The linear form for bf16 inputs, dk up to 256.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_bf16_256() { return linear_kernels<bf16, 256, 64>(); }

}  // namespace mhla::cuda
