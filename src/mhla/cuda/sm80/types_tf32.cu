// Mixing and denominators for f32 inputs through TF32.
#include "mhla/cuda/sm80/tf32_inputs.cuh"
#include "mhla/cuda/sm80/types_instance.cuh"

namespace mhla::cuda {

const TypeKernels& type_kernels_tf32() { return type_kernels<tf32>(); }

}  // namespace mhla::cuda
