// The linear form for bf16 inputs, dk up to 96.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_bf16_96() { return linear_kernels<bf16, 96, 96>(); }

}  // namespace mhla::cuda
