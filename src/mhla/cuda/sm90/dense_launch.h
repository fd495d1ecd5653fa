// Host entry points of the dense kernels.
#pragma once

#include "mhla/cuda/sm90/dense_args.h"
#include "mhla/tensor_view.h"

namespace mhla::cuda::sm90 {

// width: 32, 64, 72, 96 or 128; mixing_blocks: 16 or 64, but not 64 with width 72.
struct DenseLaunch {
  int width, mixing_blocks, grid, shared_bytes;
  void* stream;
};
void launch_dense(DType dtype, DenseKernel kernel, const DenseLaunch& launch,
                  const DenseArgs& args);
// Compiled in dense_<type>_<width>.cu.
template <typename T, int D>
void launch_width(DenseKernel kernel, const DenseLaunch& launch, const DenseArgs& args);

// Sums the mixing gradient over slots and tokens in a fixed order.
struct DenseReduceArgs {
  const float* sums;         // [slots][key tokens][mixing_blocks]
  std::int64_t sums_stride;  // between slots
  int slots, mixing_blocks;
  int heads;                 // 1: all slots go to one matrix; else slot % heads is the head
  const int* token_list;     // key tokens sorted by block
  const int* block_offsets;  // [key blocks + 1]
  int query_blocks, key_blocks;
  Seen seen;
  float* d_mixing;  // [heads][rows][columns]
  std::int64_t head_stride, row_stride, column_stride;
  int rows, columns;
};
void launch_dense_reduce(const DenseReduceArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
