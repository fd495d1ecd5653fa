// Lists the Hopper kernels of the linear form for one head size.
#pragma once

#include "mhla/cuda/sm90/linear_backward_key.cuh"
#include "mhla/cuda/sm90/linear_backward_query.cuh"
#include "mhla/cuda/sm90/linear_readout.cuh"
#include "mhla/cuda/sm90/linear_summaries.cuh"

namespace mhla::cuda::sm90 {

template <typename M>
constexpr TileKernel tile_kernel(void (*entry)(TileArgs)) {
  return {entry, M::kThreads, M::kBytes, M::kThreadBlocks};
}

template <int W, int kHeads>
inline const TileKernels kTileKernels{
    .heads = kHeads,
    .summaries = tile_kernel<SummariesMemory<W, kHeads>>(tile_summaries<W, kHeads>),
    .readout = tile_kernel<ReadoutMemory<W, kHeads>>(tile_readout<W, kHeads>),
    .backward_q = tile_kernel<BackwardQueryMemory<W, kHeads>>(tile_backward_q<W, kHeads>),
    .backward_kv = tile_kernel<BackwardKeyMemory<W, kHeads>>(tile_backward_kv<W, kHeads>)};

}  // namespace mhla::cuda::sm90
