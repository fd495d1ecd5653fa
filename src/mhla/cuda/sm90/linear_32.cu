// The Hopper kernels of the linear form for two heads of 32 columns side by side.
#include "mhla/cuda/sm90/linear_instance.cuh"

namespace mhla::cuda::sm90 {

const TileKernels& tile_kernels_32() { return kTileKernels<64, 2>; }

}  // namespace mhla::cuda::sm90
