// The linear form for f16 inputs, dk up to 96.
#include "mhla/cuda/sm80/linear_instance.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_f16_96() { return linear_kernels<f16, 96, 96>(); }

}  // namespace mhla::cuda
