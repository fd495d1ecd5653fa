// What the host tells the Hopper kernels of the linear form. A block of the layout is cut into
// slices, boxes of the token grid that the copy engine fetches; a tile is the slices that fit 64
// rows.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/feature_map.cuh"
#include "mhla/cuda/sm90/fused_boxes.h"

namespace mhla::cuda::sm90 {

// Blocks alike, of one sequence, except that the last of an axis may be shorter: rows past it are
// zeros when read and are not written. Axes are z, y, x.
struct TileLayout {
  int blocks;     // of the layout
  int counts[3];  // blocks along an axis
  int grid[3];    // tokens along an axis
  int extent[3];  // of a block
  int slice[3];   // extent of a slice
  int across[3];  // slices of a block along an axis
  int slice_rows, slices, per_tile, tiles;
};

struct TileArgs {
  TensorMap in[2], out[2];
  TileLayout layout;
  int tasks;                           // blocks of all pairs of the launch
  int batch_first, head_first, heads;  // heads go by tiles, which may hold two
  // [pair][block][entries]: a summary as it lies in shared memory, 64 columns of dv side by side in
  // swizzled rows of 128 bytes, then, when normalised, the key sum.
  const void* summaries_in;
  void* summaries_out;
  int entries;
  Map map;
  float scale, eps;
  int normalized;  // key sums are part of the summaries, and rows are divided by their product
  int has_out[2];
  float* key_sums;       // [pair][block][D], apart from the summaries; or null
  const float* factors;  // of rows, [pair][block][slots], instead of the product; or null
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
};

// The mixing product of up to 64, 160 or 256 blocks; all weights stay in shared memory, and 64
// entries of all summaries of a pair stream by.
struct SlabArgs {
  TensorMap weights;  // [rows][columns], padded with zeros
  TensorMap in, out;  // [pair][block][entries]
  int pairs, slabs;   // slabs of a pair
  // Up to 64 blocks the weights come as they are, in f32; lower: those above the diagonal are zero.
  const float* mixing;
  std::int64_t row_stride, column_stride;
  int rows, columns, lower;
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
