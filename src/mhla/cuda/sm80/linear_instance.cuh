// Fills the table of one input type and width; each instance file holds one call.
#pragma once

#include "mhla/cuda/sm80/linear_backward_kv.cuh"
#include "mhla/cuda/sm80/linear_backward_q.cuh"
#include "mhla/cuda/sm80/linear_causal_backward.cuh"
#include "mhla/cuda/sm80/linear_forward.cuh"
#include "mhla/cuda/sm80/linear_kernels.h"

namespace mhla::cuda {

template <typename T, int DK, int DV>
const LinearKernels& linear_kernels() {
  using L = Linear<T, DK, DV>;
  constexpr int kCausal = CausalTiles<L>::kBytes;
  static const LinearKernels kernels{
      .dk = DK,
      .dv = DV,
      .rows = L::kRows,
      .threads = L::kThreads,
      .carry_floats = Carry<L>::kSums * L::kThreads,
      .summaries = {summaries<L>, {summaries_bytes<L>(1), summaries_bytes<L>(2)}},
      .readout = {readout<L>, {readout_bytes<L>(1), readout_bytes<L>(2)}},
      .backward_q = {backward_q<L>, {backward_q_bytes<L>(1), backward_q_bytes<L>(2)}},
      .backward_kv = {backward_kv<L>, {backward_kv_bytes<L>(1), backward_kv_bytes<L>(2)}},
      .readout_causal = {readout_causal<L>, {kCausal, kCausal}},
      .backward_q_causal = {backward_q_causal<L>, {kCausal, kCausal}},
      .backward_kv_causal = {backward_kv_causal<L>, {kCausal, kCausal}}};
  return kernels;
}

}  // namespace mhla::cuda
