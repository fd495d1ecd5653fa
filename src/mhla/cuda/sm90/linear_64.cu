// The Hopper kernels of the linear form for heads of 64 columns.
#include "mhla/cuda/sm90/linear_instance.cuh"

namespace mhla::cuda::sm90 {

const TileKernels& tile_kernels_64() { return kTileKernels<64, 1>; }

}  // namespace mhla::cuda::sm90
