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

const SlabKernels& slab_kernels(int blocks) {
  static const SlabKernels kLists[] = {kernels_of<64>(), kernels_of<160>(), kernels_of<256>()};
  return kLists[blocks <= 64 ? 0 : blocks <= 160 ? 1 : 2];
}

}  // namespace mhla::cuda::sm90
