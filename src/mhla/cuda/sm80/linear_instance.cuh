// Fills the table of one input type and width; each instance file holds one call.
#pragma once

#include "mhla/cuda/sm80/linear_backward_kv.cuh"
#include "mhla/cuda/sm80/linear_backward_q.cuh"
#include "mhla/cuda/sm80/linear_causal_backward.cuh"
#include "mhla/cuda/sm80/linear_forward.cuh"
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm80/packed_backward.cuh"

namespace mhla::cuda {

template <typename Bytes>
constexpr LinearKernel kernel_of(Kernel<LinearArgs> entry, Bytes bytes) {
  return {entry, {bytes(1), bytes(2)}};
}

template <typename T, int DK, int DV>
const LinearKernels& linear_kernels() {
  using L = Linear<T, DK, DV>;
  constexpr int kCausal = CausalTiles<L>::kBytes;
  static const LinearKernels kernels = [] {
    LinearKernels k{.dk = DK,
                    .dv = DV,
                    .rows = L::kRows,
                    .threads = L::kThreads,
                    .carry_floats = Carry<L>::kSums * L::kThreads};
    if constexpr (std::is_same_v<T, bf16>) {
      using P = Packed<DK, DV>;
      k.summaries = kernel_of(packed_summaries<P>, packed_summaries_bytes<P>);
      k.readout = kernel_of(packed_readout<P>, packed_readout_bytes<P>);
      k.packed_backward_q = kernel_of(packed_backward_q<P>, packed_backward_q_bytes<P>);
      k.packed_backward_kv = kernel_of(packed_backward_kv<P>, packed_backward_kv_bytes<P>);
    } else {
      k.summaries = kernel_of(summaries<L>, summaries_bytes<L>);
      k.readout = kernel_of(readout<L>, readout_bytes<L>);
    }
    k.backward_q = kernel_of(backward_q<L>, backward_q_bytes<L>);
    k.backward_kv = kernel_of(backward_kv<L>, backward_kv_bytes<L>);
    k.readout_causal = {readout_causal<L>, {kCausal, kCausal}};
    k.backward_q_causal = {backward_q_causal<L>, {kCausal, kCausal}};
    k.backward_kv_causal = {backward_kv_causal<L>, {kCausal, kCausal}};
    return k;
  }();
  return kernels;
}

}  // namespace mhla::cuda
