// The linear form for bf16 inputs, dk up to 128.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_bf16_128() { return linear_kernels<bf16, 128, 128>(); }

}  // namespace mhla::cuda
