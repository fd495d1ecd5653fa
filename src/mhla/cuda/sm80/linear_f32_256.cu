// The linear form for f32 inputs, dk up to 256.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f32_256() { return linear_kernels<float, 256, 32>(); }

}  // namespace mhla::cuda
