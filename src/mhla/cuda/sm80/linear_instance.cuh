// Fills the table of one input type and width; each instance file holds one call.
#pragma once

#include "mhla/cuda/sm80/linear_backward_kv.cuh"
#include "mhla/cuda/sm80/linear_backward_q.cuh"
#include "mhla/cuda/sm80/linear_causal_backward.cuh"
#include "mhla/cuda/sm80/linear_forward.cuh"
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm80/linear_row_dots.cuh"
#include "mhla/cuda/sm80/packed_blocks.cuh"

namespace mhla::cuda {

// One to `most` row tiles in flight; `bytes` gives the shared memory of each choice.
template <typename Bytes>
LinearKernel staged(Kernel<LinearArgs> entry, int threads, int blocks, int most, Bytes bytes) {
  return {entry, threads, blocks, bytes(1), bytes(2) - bytes(1), most};
}

// bf16: kernels whose rows belong to groups of warps.
template <int DK, int DV, typename Shape>
void add_packed(LinearKernels& k) {
  using P = Packed<DK, DV, Shape>;
  using Q = Packed<DK, DV, BackwardShape<Shape>>;
  static_assert(Q::kRows == P::kRows);
  k.summaries = staged(packed_summaries<P>, P::kThreads, P::kBlocks, kMostStages,
                       packed_summaries_bytes<P>);
  k.readout = staged(packed_readout<P>, P::kThreads, P::kReadoutBlocks, kMostStages,
                     packed_readout_bytes<P>);
  k.packed_backward_q = staged(packed_backward_q<Q>, Q::kThreads, Q::kBackwardQBlocks, kMostStages,
                               packed_backward_q_bytes<Q>);
  k.packed_backward_kv = staged(packed_backward_kv<P>, P::kThreads, P::kBackwardKvBlocks,
                                kMostStages, packed_backward_kv_bytes<P>);
  using Causal = PackedCausalTiles<P>;
  k.packed_readout_causal = {packed_readout_causal<P>, P::kThreads, 1, Causal::kReadoutBytes};
  k.packed_backward_q_causal = {packed_backward_q_causal<Q>, Q::kThreads, 1, Causal::kBytes};
  k.packed_backward_kv_causal = {packed_backward_kv_causal<P>, P::kThreads, 1, Causal::kBytes};
  if constexpr (DV % 64 == 0) {
    k.packed_readout_block = {packed_readout_block<P>, P::kThreads, 1,
                              CausalReadoutTiles<P>::kBytes};
    k.packed_backward_block = {packed_backward_block<P>, P::kThreads, 1,
                               CausalGradientTiles<P>::kBytes};
  }
}

template <typename T, int DK, int DV, typename Shape = LinearShape<DK, DV>>
const LinearKernels& linear_kernels() {
  using L = Linear<T, DK, DV, Shape>;
  static const LinearKernels kernels = [] {
    LinearKernels k{
        .dk = DK, .dv = DV, .rows = L::kRows, .carry_floats = Carry<L>::kSums * L::kThreads};
    if constexpr (std::is_same_v<T, bf16>) {
      add_packed<DK, DV, Shape>(k);
    } else {
      k.summaries = staged(summaries<L>, L::kThreads, 1, 2, summaries_bytes<L>);
      k.readout = staged(readout<L>, L::kThreads, 1, 2, readout_bytes<L>);
    }
    k.backward_q = staged(backward_q<L>, L::kThreads, 1, 2, backward_q_bytes<L>);
    k.backward_kv = staged(backward_kv<L>, L::kThreads, 1, 2, backward_kv_bytes<L>);
    using Causal = CausalTiles<L>;
    k.readout_causal = {readout_causal<L>, L::kThreads, 1, Causal::kBytes};
    k.backward_q_causal = {backward_q_causal<L>, L::kThreads, 1, Causal::kBytes};
    k.backward_kv_causal = {backward_kv_causal<L>, L::kThreads, 1, Causal::kBytes};
    k.row_dots = {row_dots<L>, L::kThreads, 1, RowDotTiles<L>::kBytes};
    return k;
  }();
  return kernels;
}

}  // namespace mhla::cuda
