// The linear form for f32 inputs, dk up to 80.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f32_80() { return linear_kernels<float, 80, 80>(); }

}  // namespace mhla::cuda
