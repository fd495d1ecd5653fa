// Fills the table of the kernels that depend on the input type only.
#pragma once

#include "mhla/cuda/sm80/denominators.cuh"
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm80/mixing.cuh"
#include "mhla/cuda/sm80/mixing_vectors.cuh"

namespace mhla::cuda {

template <typename M, typename G>
MixKernel mix_kernel() {
  return {mix<M, G>, M::kRows, M::kCols, M::kBytes};
}

template <typename W, typename G>
WeightGradientKernel weight_gradient_kernel() {
  return {weight_gradient<W, G>, W::kTile, W::kThreads, W::kBytes};
}

template <typename T>
const TypeKernels& type_kernels() {
  using G = typename SummaryOf<T>::type;
  static const TypeKernels kernels{
      .summary_size = static_cast<int>(sizeof(G)),
      .prepare_weights = prepare_weights<G>,
      .mix = {mix_kernel<Mix<G, 1, 1, 4, false>, G>(), mix_kernel<Mix<G, 1, 2, 4, false>, G>(),
              mix_kernel<Mix<G, 2, 2, 8, false>, G>(), mix_kernel<Mix<G, 1, 5, 4, false>, G>(),
              mix_kernel<Mix<G, 2, 4, 4, false>, G>()},
      .mix_transposed = {mix_kernel<Mix<G, 1, 1, 4, true>, G>(),
                         mix_kernel<Mix<G, 1, 2, 4, true>, G>(),
                         mix_kernel<Mix<G, 2, 2, 8, true>, G>(),
                         mix_kernel<Mix<G, 1, 5, 4, true>, G>(),
                         mix_kernel<Mix<G, 2, 4, 4, true>, G>()},
      .weight_gradient = {weight_gradient_kernel<WeightGradient<G, 16, 1, 1, 8, 256>, G>(),
                          weight_gradient_kernel<WeightGradient<G, 64, 2, 2, 2, 64>, G>(),
                          weight_gradient_kernel<WeightGradient<G, 80, 5, 1, 2, 64>, G>(),
                          weight_gradient_kernel<WeightGradient<G, 128, 4, 2, 1, 64>, G>()},
      .key_sums = key_sums<T>,
      .row_products = row_products<T>,
      .row_factors = row_factors<T>,
      .denominator_backward_q = denominator_backward_q<T>,
      .denominator_backward_k = denominator_backward_k<T>};
  return kernels;
}

}  // namespace mhla::cuda
