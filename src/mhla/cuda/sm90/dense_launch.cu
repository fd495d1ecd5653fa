// From run-time sizes to the compiled dense kernels.
#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/dense_launch.h"
#include "mhla/error.h"

namespace mhla::cuda::sm90 {
namespace {

template <typename T>
void launch_type(DenseKernel kernel, const DenseLaunch& launch, const DenseArgs& args) {
  switch (launch.width) {
    case 32: return launch_width<T, 32>(kernel, launch, args);
    case 64: return launch_width<T, 64>(kernel, launch, args);
    case 72: return launch_width<T, 72>(kernel, launch, args);
    case 96: return launch_width<T, 96>(kernel, launch, args);
    case 128: return launch_width<T, 128>(kernel, launch, args);
  }
  fail(ErrorCode::internal, "cuda.dense", "no kernel for width ", launch.width);
}

}  // namespace

void launch_dense(DType dtype, DenseKernel kernel, const DenseLaunch& launch,
                  const DenseArgs& args) {
  if (dtype == DType::bf16) return launch_type<bf16>(kernel, launch, args);
  if (dtype == DType::f16) return launch_type<f16>(kernel, launch, args);
  fail(ErrorCode::internal, "cuda.dense", "no kernel for ", name(dtype));
}

}  // namespace mhla::cuda::sm90
