// The short forward for bf16.
#include "mhla/cuda/sm90/dense_short_instance.cuh"

namespace mhla::cuda::sm90 {

template void launch_short<bf16>(int, const ShortArgs&, void*);

}  // namespace mhla::cuda::sm90
