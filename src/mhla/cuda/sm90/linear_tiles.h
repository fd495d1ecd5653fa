// What the host tells the Hopper kernels of the linear form. A block of the layout is cut into
// slices, boxes of the token grid that the copy engine fetches; a tile is the slices that fit 64
// rows.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/feature_map.cuh"
#include "mhla/cuda/sm80/mixing_args.h"
#include "mhla/cuda/sm90/fused_boxes.h"

namespace mhla::cuda::sm90 {

// Division by a number of the launch, 1 or more: two instructions, exact below 2^31. Blocks of one
// tile are looked up so often that divisions by variables show.
struct Divisor {
  unsigned multiplier = 1;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int n) {
    while (std::int64_t{1} << shift < n) ++shift;
    const std::uint64_t above = (std::uint64_t{1} << shift) - static_cast<std::uint64_t>(n);
    multiplier = static_cast<unsigned>((above << 32) / static_cast<std::uint64_t>(n)) + 1;
  }
  __device__ __forceinline__ unsigned divide(unsigned x) const {
    return (__umulhi(x, multiplier) + x) >> shift;
  }
};

// How blocks of one size are cut. Axes are z, y, x.
struct TileShape {
  int extent[3];  // of a block
  int slice[3];   // extent of a slice
  int slice_rows, slices, per_tile, tiles;
};

// Blocks of one sequence. All are alike, except that the last of an axis may be shorter: rows past
// it are zeros when read and are not written. Or they are of two kinds, some longer by one along
// one axis.
struct TileLayout {
  int blocks;            // of the layout
  int counts[3];         // blocks along an axis
  int grid[3];           // tokens along an axis
  int step[3], rest[3];  // block i of an axis starts at i * step + i * rest / counts
  int kinds;
  int whole;      // all blocks fill the box
  int one_slice;  // and are one slice each
  TileShape shapes[2];
  // The box that all blocks fit: a place in it, in raster order, is a slot.
  int box[3];
  Divisor by_blocks, by_columns, by_lines;  // blocks, counts[2], counts[1]
};

// Numbers of the rows of a block are padded to whole 16 bytes.
inline constexpr int kSlotPad = 4;

struct TileArgs {
  TensorMap in[2][2], out[2][2];  // for every kind of block
  TileLayout layout;
  int tasks;                           // blocks of all pairs of the launch
  int batch_first, head_first, heads;  // heads go by tiles, which may hold two
  Divisor by_heads;
  // [pair][block][entries]: a summary as it lies in shared memory, 64 columns of dv side by side in
  // swizzled rows of 128 bytes, then, when normalised, the key sum.
  const void* summaries_in;
  void* summaries_out;
  int entries;
  Map map;
  float scale, eps;
  int normalized;  // key sums are part of the summaries, and rows are divided by their product
  int has_out[2];
  // Key sums or their gradients, [pair][block][D], apart from the summaries; or null.
  const float* vectors;
  float* vectors_out;
  // Of rows, [pair][block][slots]: the factor, instead of the product, and the gradient of
  // phi(q) . z; or null.
  const float *factors, *row_e;
  float *row_base, *row_dots;  // what tile_rows makes
  int slots;
};

// A kernel and its launch.
struct TileKernel {
  void (*entry)(TileArgs);
  int threads, bytes;
  int thread_blocks;  // that share a multiprocessor
};
struct TileKernels {
  int heads;  // of a tile
  // in: k, v; q; q, d_o; k, v. out: none; o; d_q; d_k, d_v.
  TileKernel summaries, readout, backward_q, backward_kv;
  // shared_position: denominators and what the backward wants of them (in: q; q, d_o), and the
  // backward with rows whose factors are given.
  TileKernel rows, backward_rows, backward_q_given, backward_kv_given;
};

// Mixing of numbers of rows, [pair][block][slots], over blocks.
struct RowMixArgs {
  const float* weights;         // [heads or 1][padded rows][padded columns]
  std::int64_t weights_stride;  // between heads; 0 when shared
  int weights_ld;
  int head_first, heads;  // of the pairs
  TileLayout layout;
  int slots;
  const float* in;
  float* out;
  // Denominators become factors. Backward, also: what <d_o, o> over the factor makes of them.
  float scale, eps;
  const float* dots;  // or null
  float* dden;
};
struct RowMixKernels {
  int threads, rows, columns;            // of a thread block
  void (*factors)(RowMixArgs);           // of m in
  void (*transposed)(RowMixArgs);        // m^T in; zero where there is no token
  void (*gradient)(WeightGradientArgs);  // of m, through numbers of rows
  int gradient_tile;                     // weights both ways of a thread block
};
const RowMixKernels& row_mix_kernels();

// The mixing product of up to 64, 160 or 256 blocks; all weights stay in shared memory, and 64
// entries of all summaries of a pair stream by.
struct SlabArgs {
  TensorMap weights;  // [rows][columns], padded with zeros
  TensorMap in, out;  // [pair][block][entries]
  int pairs, slabs;   // slabs of a pair
  Divisor by_slabs;
  // Up to 64 blocks the weights come as they are, in f32; lower: those above the diagonal are zero.
  const float* mixing;
  std::int64_t row_stride, column_stride;
  int rows, columns, lower;
  int early;  // they may be read before the kernel before has ended
};
struct SlabKernel {
  void (*entry)(SlabArgs);
  int threads, bytes;
};
struct SlabKernels {
  int blocks;
  SlabKernel mix, mix_transposed;
};

// Gradient of up to 160 x 160 weights: <left_i, right_b> over pairs and entries.
struct SlabGradientArgs {
  TensorMap left, right;  // [pair][block][entries]
  int pairs, slabs;
  float* partial;  // [thread block][160][160]
};
struct SlabGradientKernel {
  void (*entry)(SlabGradientArgs);
  int threads, bytes, left_rows, right_rows;
};
const SlabGradientKernel& slab_gradient();

const SlabKernels& slab_kernels(int blocks);  // at most 256
const TileKernels& tile_kernels_32();
const TileKernels& tile_kernels_64();
const TileKernels& tile_kernels_128();

}  // namespace mhla::cuda::sm90
