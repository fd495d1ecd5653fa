// Mixing and denominators for bf16 inputs.
#include "mhla/cuda/sm80/types_instance.cuh"

namespace mhla::cuda {

const TypeKernels& type_kernels_bf16() { return type_kernels<bf16>(); }

}  // namespace mhla::cuda
