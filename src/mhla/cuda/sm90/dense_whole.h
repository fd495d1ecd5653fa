// The backward of a whole head on the chip, for sequences of at most 256 tokens: what the host
// tells the kernel.
//
// Tokens lie in shared memory in the order of their blocks, and every block starts at a multiple of
// 16 rows ("slots" of 16 rows, empty rows are zero). So the 16 rows of a warp belong to one block,
// and so do 16 columns of a product: a mixing weight is a constant of 16 x 16 scores.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_args.h"
#include "mhla/problem.h"

namespace mhla::cuda::sm90 {

inline constexpr int kSlotRows = 16, kWholeSlots = 16, kWholeRows = kSlotRows * kWholeSlots;

// Where a row of a head comes from; one table on the device.
struct WholeTable {
  int query_token[kWholeRows], key_token[kWholeRows];    // or -1
  int query_block[kWholeSlots], key_block[kWholeSlots];  // or -1
};

struct WholeArgs {
  const WholeTable* table;
  int items, heads;  // items = batch * heads
  int dk, dv;
  Feature feature;
  int blocks_before;  // queries see key blocks up to their own only
  int padded;         // some rows are empty
  int normalize;
  float scale, eps;
  const float* mixing;  // [query blocks][key blocks]
  int mixing_row_stride, mixing_column_stride;
  RowTensor q, k, v, d_o;   // [B, tokens, H, dk or dv]
  RowTensor d_q, d_k, d_v;  // data may be null
  float* mixing_sums;       // [thread block][key slot][query block], or null
  // shared_position: of every query in natural order, [batch * heads][row_stride]; or null
  const float *row_factor, *row_gradient;
  int row_stride;
};

struct WholePlan {
  int width = 0;  // compiled: 64, 72 or 96
  int grid = 0;   // thread blocks, each takes heads in turn
  bool padded = false;
  WholeTable table{};
  std::vector<int> key_slots, block_offsets;  // key slots by block, as dense_reduce.cu reads them
};

// Empty when the problem has to take the general kernels.
std::optional<WholePlan> whole_plan(const Problem& problem, int processors);

void launch_whole(DType dtype, int width, int grid, const WholeArgs& args, void* stream);
// Compiled in dense_whole_<type>.cu.
template <typename T>
void launch_whole_type(int width, int grid, const WholeArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
