// The linear form for f32 inputs through TF32, dk up to 64.
#include "mhla/cuda/sm80/linear_instance.cuh"
#include "mhla/cuda/sm80/tf32_inputs.cuh"

namespace mhla::cuda {

const LinearKernels& linear_kernels_tf32_64() { return linear_kernels<tf32, 64, 64>(); }

}  // namespace mhla::cuda
