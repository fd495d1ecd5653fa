// Mixing with resident weights.
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm80/mixing_resident.cuh"

namespace mhla::cuda {
namespace {

template <typename M, bool kTransposed>
MixKernel resident_mix() {
  return {mix_resident<M, kTransposed>, M::kBlocks, M::kCols, M::kBytes};
}

}  // namespace

const ResidentKernels* resident_kernels(int blocks) {
  using Small = ResidentMix<160, 2, 3>;
  using Large = ResidentMix<256, 4, 2>;
  static const ResidentKernels kSmall{
      .mix = resident_mix<Small, false>(),
      .mix_transposed = resident_mix<Small, true>(),
      .weight_gradient = {weight_gradient_resident, ResidentGradient::kBlocks,
                          ResidentGradient::kThreads, ResidentGradient::kBytes}};
  static const ResidentKernels kLarge{.mix = resident_mix<Large, false>(),
                                      .mix_transposed = resident_mix<Large, true>(),
                                      .weight_gradient = {}};
  // NOTE: with fewer blocks the other kernels have less padding.
  return blocks <= 96 ? nullptr : blocks <= 160 ? &kSmall : blocks <= 256 ? &kLarge : nullptr;
}

}  // namespace mhla::cuda
