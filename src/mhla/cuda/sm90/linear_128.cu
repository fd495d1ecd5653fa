// The Hopper kernels of the linear form for heads of 128 columns.
#include "mhla/cuda/sm90/linear_instance.cuh"

namespace mhla::cuda::sm90 {

const TileKernels& tile_kernels_128() { return kTileKernels<128, 1>; }

}  // namespace mhla::cuda::sm90
