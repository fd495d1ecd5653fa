// Mixing and denominators for f16 inputs.
#include "mhla/cuda/sm80/types_instance.cuh"

namespace mhla::cuda {

const TypeKernels& type_kernels_f16() { return type_kernels<f16>(); }

}  // namespace mhla::cuda
