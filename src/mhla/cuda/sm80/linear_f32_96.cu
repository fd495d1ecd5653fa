// The linear form for f32 inputs, dk up to 96.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f32_96() { return linear_kernels<float, 96, 96>(); }

}  // namespace mhla::cuda
