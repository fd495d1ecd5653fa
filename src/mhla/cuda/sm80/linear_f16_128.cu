// The linear form for f16 inputs, dk up to 128.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f16_128() { return linear_kernels<f16, 128, 128>(); }

}  // namespace mhla::cuda
