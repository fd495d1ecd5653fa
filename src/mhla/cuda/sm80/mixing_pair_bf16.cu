// Mixing of summaries and their gradients at once.
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm80/mixing_pair.cuh"

namespace mhla::cuda {
namespace {

__global__ void __launch_bounds__(PairMix::kThreads, 1) mix_pair(const PairMixArgs args) {
  using P = PairMix;
  ptx::begin_after_previous();
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x / 32), block = static_cast<int>(blockIdx.x);
  float sum[2][4][4] = {};
  mix_share(args, shared + warp * P::kStages * P::kStage,
            {block * P::kWarps + warp, static_cast<int>(gridDim.x) * P::kWarps}, sum, PairAlone{});
  if (args.partial == nullptr) return;
  store_pair_sums(args, reinterpret_cast<float*>(shared), block, sum, [] { __syncthreads(); });
}

}  // namespace

const PairMixKernel& pair_mix_kernel() {
  static const PairMixKernel kKernel{mix_pair, PairMix::kBlocks, PairMix::kEntries,
                                     PairMix::kThreads, PairMix::kBytes};
  return kKernel;
}

}  // namespace mhla::cuda
