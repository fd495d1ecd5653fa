// Stands for the kernels in little shared memory in a build for Hopper alone, where all others fit.
#include <cstdint>

#include "mhla/error.h"

namespace mhla::cuda {

struct LinearKernels;  // NOTE: its header is for nvcc alone

namespace {

[[noreturn]] void no_lean_kernels() {
  fail(ErrorCode::device, "cuda.linear",
       "too little shared memory (with MHLA_CUDA_PORTABLE=ON there are kernels for less)");
}

}  // namespace

const LinearKernels& lean_kernels_bf16(std::int64_t) { no_lean_kernels(); }
const LinearKernels& lean_kernels_f16(std::int64_t) { no_lean_kernels(); }
const LinearKernels& lean_kernels_f32(std::int64_t) { no_lean_kernels(); }
const LinearKernels& lean_kernels_tf32(std::int64_t) { no_lean_kernels(); }

}  // namespace mhla::cuda
