// What the host tells the mixing kernels.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda {

// Some rows of one sequence's mixing product: out[row] = sum of weight(row, col) in[col].
struct MixTask {
  int out_first, out_rows;  // the sequence's blocks in the layout that is written
  int in_first, in_rows;    // and in the layout that is read
  int row;                  // first row of this task, counted in the sequence
  int col_begin, col_end;   // columns whose weights may differ from zero
};

// Weights are padded with zeros to multiples of kMixPad; masked ones are zero.
inline constexpr int kMixPad = 128;

// Thread blocks of the kernels that keep the weights: one a multiprocessor of an H100 or H200.
inline constexpr int kResidentGrid = 132;

struct MixArgs {
  const MixTask* tasks;
  const void* weights;          // [heads or 1][padded rows][padded cols]
  std::int64_t weights_stride;  // between heads; 0 when shared
  int weights_ld;
  const void* in;  // [pair][in_blocks][entries]
  void* out;       // [pair][out_blocks][entries]
  int in_blocks, out_blocks;
  int entries;
  int head_first, heads;  // of the pairs
  int slabs_per_block;    // of entries
  int task_count;
};

// Gradient of the mixing weights: <left_i, right_b> over pairs, sequences and entries.
struct MixSequence {
  int q_first, q_rows, k_first, k_rows;
};

struct WeightGradientArgs {
  const MixSequence* sequences;
  int sequence_count;
  const void* left;   // [pair][q_blocks][entries]
  const void* right;  // [pair][k_blocks][entries]
  int q_blocks, k_blocks;
  int entries;
  int pairs;  // all pairs of the launch
  int heads;  // of the launch; 1 matrix per head when per_head
  bool per_head;
  bool lower_only;              // entries above the diagonal are never read
  float* partial;               // [split][matrix][padded rows][padded cols]
  std::int64_t partial_stride;  // between splits
  int rows_padded, cols_padded;
  int matrix_first;  // first matrix of the launch
  int tiles_n;       // tiles across the columns that are used
};

// Both directions of the mixing and the gradient of the weights at once, in place.
struct PairMixArgs {
  const bf16* weights;  // [padded rows][padded cols], zero on and above the diagonal
  int weights_ld;
  bf16 *summaries, *gradients;  // [pair][blocks][entries]: S to S~, dS~ to dS
  int pairs, blocks, entries;
  int slots;                    // pair p lies in slot p % slots of the arrays
  bool backwards;               // from the last pair to the first
  float* partial;               // [thread block][padded rows][padded cols], or null
  std::int64_t partial_stride;  // between thread blocks
  int partial_ld;
  bool add;  // to the sums of the pairs before
};

struct PrepareArgs {
  const float* mixing;
  std::int64_t head_stride, row_stride, col_stride;
  int matrices, rows, cols;  // the part that is used
  int rows_padded, cols_padded;
  int mask;       // the order of mhla::Mask
  void* weights;  // summary type
  float* weights_f32;
  float* diagonal;  // [matrices][rows_padded]
};

struct ReduceArgs {
  const float* partial;
  std::int64_t partial_stride;
  int splits;
  int shares;  // warps of a thread block
  int rows_padded, cols_padded;
  int mask;
  int used_rows, used_cols;
  float* d_mixing;
  std::int64_t head_stride, row_stride, col_stride;
  int matrices, rows, cols;  // of d_mixing
  // Causal: gradients of m_ii from inside the blocks, [batch][heads][blocks].
  const float* diagonal_terms;
  const int* block_index;  // [blocks]: row of the mixing matrix
  int batch, heads, blocks;
  bool per_head;
};

}  // namespace mhla::cuda
