// The forward by positions for f16.
#include "mhla/cuda/sm90/dense_position_instance.cuh"

namespace mhla::cuda::sm90 {

template void launch_position<f16>(bool, const PositionArgs&, void*);

}  // namespace mhla::cuda::sm90
