// The linear form for f32 inputs through TF32, dk up to 96.
#include "mhla/cuda/sm80/linear_instance.cuh"
#include "mhla/cuda/sm80/tf32_inputs.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_tf32_96() { return linear_kernels<tf32, 96, 96>(); }

}  // namespace mhla::cuda
