// The linear form for f16 inputs, dk up to 64.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f16_64() { return linear_kernels<f16, 64, 64>(); }

}  // namespace mhla::cuda
