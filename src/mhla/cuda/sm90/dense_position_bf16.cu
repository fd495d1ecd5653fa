// The forward by positions for bf16.
#include "mhla/cuda/sm90/dense_position_instance.cuh"

namespace mhla::cuda::sm90 {

template void launch_position<bf16>(bool, const PositionArgs&, void*);

}  // namespace mhla::cuda::sm90
