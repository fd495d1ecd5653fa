// Lists the Hopper kernels of the linear form for one head size.
#pragma once

#include "mhla/cuda/sm90/linear_backward_key.cuh"
#include "mhla/cuda/sm90/linear_backward_query.cuh"
#include "mhla/cuda/sm90/linear_readout.cuh"
#include "mhla/cuda/sm90/linear_rows.cuh"
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
    .backward_q = tile_kernel<BackwardQueryMemory<W, kHeads>>(tile_backward_q<W, kHeads, false>),
    .backward_kv = tile_kernel<BackwardKeyMemory<W, kHeads>>(tile_backward_kv<W, kHeads, false>),
    .rows = tile_kernel<RowsMemory<W, kHeads, false>>(tile_rows<W, kHeads, false>),
    .backward_rows = tile_kernel<RowsMemory<W, kHeads, true>>(tile_rows<W, kHeads, true>),
    .backward_q_given = tile_kernel<BackwardQueryMemory<W, kHeads>>(
        tile_backward_q<W, kHeads, true>),
    .backward_kv_given = tile_kernel<BackwardKeyMemory<W, kHeads>>(
        tile_backward_kv<W, kHeads, true>)};

}  // namespace mhla::cuda::sm90
