// The dense kernels of one element type and width; each file that instantiates this compiles alone.
#pragma once

#include <cuda_runtime.h>

#include "mhla/cuda/sm90/dense_backward_key.cuh"
#include "mhla/cuda/sm90/dense_backward_query.cuh"
#include "mhla/cuda/sm90/dense_forward.cuh"
#include "mhla/cuda/sm90/dense_launch.h"
#include "mhla/error.h"

namespace mhla::cuda::sm90 {

template <typename Kernel>
void launch_kernel(Kernel kernel, int threads, const DenseLaunch& launch, const DenseArgs& args) {
  auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     launch.shared_bytes);
  if (status == cudaSuccess) {
    kernel<<<launch.grid, threads, launch.shared_bytes, static_cast<cudaStream_t>(launch.stream)>>>(
        args);
    status = cudaGetLastError();
  }
  if (status != cudaSuccess) fail(ErrorCode::device, "cuda.dense", cudaGetErrorString(status));
}

template <typename T, int D>
void launch_width(DenseKernel kernel, const DenseLaunch& launch, const DenseArgs& args) {
  const int threads = dense_threads(compute_warpgroups(kernel, D));
  switch (kernel) {
    case DenseKernel::forward:
      return launch_kernel(dense_forward_kernel<T, D>, threads, launch, args);
    case DenseKernel::d_query:
      return launch_kernel(dense_backward_query_kernel<T, D>, threads, launch, args);
    case DenseKernel::d_key:
      if (launch.mixing_blocks == 16) {
        return launch_kernel(dense_backward_key_kernel<T, D, 16>, threads, launch, args);
      }
      // NOTE: 72 columns and 64 blocks overflow the registers; the host takes 96 columns then.
      if constexpr (D != 72) {
        return launch_kernel(dense_backward_key_kernel<T, D, 64>, threads, launch, args);
      }
  }
  fail(ErrorCode::internal, "cuda.dense", "no kernel for ", launch.mixing_blocks, " blocks");
}

}  // namespace mhla::cuda::sm90
