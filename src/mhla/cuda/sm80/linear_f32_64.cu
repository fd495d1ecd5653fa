// The linear form for f32 inputs, dk up to 64.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f32_64() { return linear_kernels<float, 64, 64>(); }

}  // namespace mhla::cuda
