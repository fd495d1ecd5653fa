// The Hopper kernels of the mixing product.
#include "mhla/cuda/sm90/linear_mix.cuh"

namespace mhla::cuda::sm90 {
namespace {

template <int kBlocks>
constexpr SlabKernels kernels_of() {
  using M = SlabMemory<kBlocks>;
  return {.blocks = kBlocks,
          .mix = {mix_slabs<kBlocks, false>, M::kThreads, M::kBytes},
          .mix_transposed = {mix_slabs<kBlocks, true>, M::kThreads, M::kBytes}};
}

}  // namespace

const SlabKernels& slab_kernels(bool small) {
  static const SlabKernels kSmall = kernels_of<160>(), kLarge = kernels_of<256>();
  return small ? kSmall : kLarge;
}

}  // namespace mhla::cuda::sm90
