// Rows of the shared_position normaliser: their factors, and in the backward the gradients of what
// they share. One small kernel ahead of those of "cuda.dense" and "cuda.fused".
//
// With base(j, p) = phi(q_jp) . z_j, a row's denominator is den(i, p) = sum_j m_ij base(j, p): all
// positions of all blocks of a head meet there, before the first row can be divided.
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/cuda/device/blocks.cuh"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_args.h"
#include "mhla/problem.h"

namespace mhla::cuda::sm90 {

// Results are [batch * heads][tokens], tokens in natural order.
struct SharedRows {
  const float* factor = nullptr;    // scale / (scale * den + eps), zero where that is 1 / 0
  const float* gradient = nullptr;  // backward: of base
};

struct SharedRowsArgs {
  const int* tokens;  // [blocks][positions]; -1 where a block has no such coordinates
  int blocks, positions;
  int items, heads;  // items = batch * heads
  int row_stride;    // of the results: tokens
  int dk, dv;
  Feature feature;
  int blocks_before;  // block i reads blocks j <= i only
  float scale, eps;
  const float* mixing;
  int mixing_row_stride, mixing_column_stride;
  RowTensor q, k;    // rows of whole 16-byte chunks, all of them
  RowTensor o, d_o;  // backward
  float *factor, *gradient;
  // This normaliser's share of d_mixing, or null: a matrix of sums_size numbers for every thread
  // block, the weight (i, j) at i * row stride + columns[j] (or j) * column stride, zeros
  // elsewhere.
  float* sums;
  int sums_size, sums_row_stride, sums_column_stride;
  const int* sums_columns;
};

// The part of a plan that belongs to this kernel.
struct SharedRowsPlan {
  int blocks = 0, positions = 0, grid = 0;
  std::vector<int> tokens;
};

// Whether its tables fit a thread block.
bool shared_rows_fit(const Problem& problem);
// Of a block: those of the smallest box that holds every block.
std::int64_t shared_rows_positions(const Problem& problem);
SharedRowsPlan shared_rows_plan(const Problem& problem, int processors);
// Thread blocks that a backward writes sums for.
int shared_rows_grid(const Problem& problem, int processors);
// Bytes of one result, aligned.
std::size_t shared_rows_bytes(const Problem& problem);
// Time of a forward over its traffic.
double shared_rows_seconds(const Problem& problem);
// All but the tensors and what depends on them.
SharedRowsArgs shared_rows_args(const Problem& problem, const SharedRowsPlan& plan,
                                const int* tokens, const TensorView& mixing);
void launch_shared_rows(DType dtype, bool backward, int grid, const SharedRowsArgs& args,
                        void* stream);

}  // namespace mhla::cuda::sm90
