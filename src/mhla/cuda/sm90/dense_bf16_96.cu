// The dense kernels for bf16 and heads of up to 96 columns.
#include "mhla/cuda/sm90/dense_instance.cuh"

namespace mhla::cuda::sm90 {

template void launch_width<bf16, 96>(DenseKernel, const DenseLaunch&, const DenseArgs&);

}  // namespace mhla::cuda::sm90
