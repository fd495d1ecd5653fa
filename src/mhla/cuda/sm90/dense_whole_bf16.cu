// The whole-head backward for bf16.
#include "mhla/cuda/sm90/dense_whole_instance.cuh"

namespace mhla::cuda::sm90 {

template void launch_whole_type<bf16>(int, int, const WholeArgs&, void*);

}  // namespace mhla::cuda::sm90
