// Mixing and denominators for f32 inputs.
#include "mhla/cuda/sm80/types_instance.cuh"

namespace mhla::cuda {

const TypeKernels& type_kernels_f32() { return type_kernels<float>(); }

}  // namespace mhla::cuda
