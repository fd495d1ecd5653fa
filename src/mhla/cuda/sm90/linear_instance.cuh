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

template <int D>
inline const TileKernels kTileKernels{
    .summaries = tile_kernel<SummariesMemory<D>>(tile_summaries<D>),
    .readout = tile_kernel<ReadoutMemory<D>>(tile_readout<D>),
    .backward_q = tile_kernel<BackwardQueryMemory<D>>(tile_backward_q<D>),
    .backward_kv = tile_kernel<BackwardKeyMemory<D>>(tile_backward_kv<D>)};

}  // namespace mhla::cuda::sm90
