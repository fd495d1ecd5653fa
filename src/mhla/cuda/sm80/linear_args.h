// What the host tells the kernels of the linear form: one struct for all of them.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/blocks.cuh"
#include "mhla/cuda/device/feature_map.cuh"

namespace mhla::cuda {

// Where the factor of an output row, scale / (scale * denominator + eps), comes from.
enum class Rows : int {
  constant,  // no normaliser: the scale
  dot,       // phi(q) . mixed key sum, computed where q is read
  given,     // row_inv, made by the denominator kernels
};

// A launch covers a rectangle of (batch entry, head) pairs; arrays of the workspace are indexed by
// the number of the pair inside it.
struct LinearArgs {
  int batch_first, head_first, heads;  // the rectangle; its batch entries follow from the grid
  int all_heads;                       // of the problem
  int dk, dv, dv_tiles;
  int dk_padded;  // DK of the kernels
  Map map;
  float scale, eps;
  float summary_scale;  // of what the summary kernel writes
  int stages;           // row tiles in flight

  const DeviceBlock* q_table;  // [q_blocks]
  const DeviceBlock* k_table;  // [k_blocks]
  int q_blocks, k_blocks;
  int slots;  // of the largest block of queries

  RowTensor q, k, v, o, d_o, d_q, d_k, d_v;
  RowTensor q_den, k_den, d_q_den,
      d_k_den;  // the same as q and k unless the problem separates them

  // Summaries are [pair][block][entries] in the summary type: a [DK][DV] matrix per dv tile, then,
  // when the rows take dot products, the key sum [DK].
  std::int64_t entries;
  bool sums_inside;   // the key sums are part of the summaries
  void* summaries;    // S
  void* mixed;        // S~
  void* d_mixed;      // dS~
  void* d_summaries;  // dS
  float* carry;       // f32 sums of dS~ between row tiles, when dv has several tiles

  // Key sums are [pair][block][DK].
  float* z;
  const float* z_read;  // what q~ is multiplied with: z~, or z for shared_position
  float* dz_read;       // gradient of z_read
  const float* dz;      // gradient of z

  // Rows are [pair][q block][slot].
  Rows rows;
  float* row_base;       // phi(q) . z_read
  float* row_intra;      // phi(q) . sum of the keys up to this position, causal only
  const float* row_den;  // row_base, mixed over blocks for shared_position
  float* row_inv;
  float* row_dden;     // gradient of the denominator times the scale
  const float* row_e;  // gradient of row_base: row_dden, mixed back for shared_position
  bool has_rows;       // the numerator's q and k also carry the denominator's gradient

  bool causal;
  const float* diagonal;  // m_ii, [heads or 1][rows of the mixing matrix]
  int diagonal_stride;    // between heads; 0 when shared
  float* diagonal_terms;  // [batch * all_heads][q_blocks]: gradient of m_ii inside the block

  float* row_dots;         // <d_o, numerator of o>, [dv tile][row]; null: row_factors reads o
  std::int64_t row_count;  // rows of a dv tile
};

// Which block of which pair a thread block works on. Heads vary fastest: their rows are neighbours
// in memory.
struct Place {
  int batch, head, block, tile_v;
  std::int64_t pair;     // inside the launch
  std::int64_t summary;  // number of the (pair, block)
};

// The grid is (heads * dv tiles, blocks, batch entries).
__device__ __forceinline__ Place locate(const LinearArgs& args, int blocks) {
  const int x = static_cast<int>(blockIdx.x);
  Place place;
  place.tile_v = x < args.heads ? 0 : x / args.heads;
  const int head = x - place.tile_v * args.heads;
  place.head = args.head_first + head;
  place.block = static_cast<int>(blockIdx.y);
  place.batch = args.batch_first + static_cast<int>(blockIdx.z);
  place.pair = static_cast<std::int64_t>(blockIdx.z) * args.heads + head;
  place.summary = place.pair * blocks + place.block;
  return place;
}

// How the warps of a thread block share the products of one pair of padded widths.
template <int DK, int DV>
struct LinearShape;
template <>
struct LinearShape<32, 32> {
  static constexpr int kWarps = 4, kRows = 64, kSumM = 2, kSumN = 2;
};
template <>
struct LinearShape<64, 64> {
  static constexpr int kWarps = 4, kRows = 64, kSumM = 2, kSumN = 2;
};
template <>
struct LinearShape<80, 80> {
  static constexpr int kWarps = 5, kRows = 80, kSumM = 5, kSumN = 1;
};
template <>
struct LinearShape<96, 96> {
  static constexpr int kWarps = 6, kRows = 96, kSumM = 3, kSumN = 2;
};
template <>
struct LinearShape<128, 128> {
  static constexpr int kWarps = 8, kRows = 64, kSumM = 4, kSumN = 2;
};
template <>
struct LinearShape<256, 64> {
  static constexpr int kWarps = 8, kRows = 64, kSumM = 8, kSumN = 1;
};
template <>
struct LinearShape<256, 32> {
  static constexpr int kWarps = 8, kRows = 64, kSumM = 8, kSumN = 1;
};

// The same in 99 KB of shared memory, which is all that compute capabilities 8.6, 8.9 and 12.x
// have.
template <int DK, int DV>
struct LeanShape;
template <>
struct LeanShape<64, 32> {
  static constexpr int kWarps = 4, kRows = 64, kSumM = 4, kSumN = 1;
};
template <>
struct LeanShape<128, 64> {
  static constexpr int kWarps = 8, kRows = 64, kSumM = 4, kSumN = 2;
};
template <>
struct LeanShape<128, 32> {
  static constexpr int kWarps = 4, kRows = 32, kSumM = 4, kSumN = 1;
};
template <>
struct LeanShape<256, 32> {
  static constexpr int kWarps = 4, kRows = 32, kSumM = 4, kSumN = 1;
};
template <>
struct LeanShape<256, 16> {
  static constexpr int kWarps = 4, kRows = 32, kSumM = 4, kSumN = 1;
};

// The backward over queries keeps [DK x DV] sums in registers besides everything else: at 128 they
// need twice the warps.
template <typename Shape>
struct BackwardShape : Shape {};
template <>
struct BackwardShape<LinearShape<128, 128>> {
  static constexpr int kWarps = 16, kRows = 64, kSumM = 4, kSumN = 4;
};

}  // namespace mhla::cuda
