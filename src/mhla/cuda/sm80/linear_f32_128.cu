// The linear form for f32 inputs, dk up to 128.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f32_128() { return linear_kernels<float, 128, 128>(); }

}  // namespace mhla::cuda
