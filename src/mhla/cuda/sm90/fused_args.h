// What the host tells the fused kernel: the linear form of one head inside one thread block.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/blocks.cuh"
#include "mhla/cuda/device/feature_map.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kFusedRows = 16;  // tokens of a warp's row tile: one mma tile
inline constexpr int kFusedTiles = 4;  // row tiles per warp: two stages of k and v, or four of q
inline constexpr int kFusedPad = 8;    // elements behind every row and every summary

struct FusedArgs {
  const DeviceBlock* q_table;  // [q_blocks]
  const DeviceBlock* k_table;  // [k_blocks]
  int q_blocks, k_blocks;
  int q_tokens, k_tokens;  // of every block, when all are alike
  int items, heads;        // items = batch * heads
  int dk, dv;
  Map map;
  float scale, eps;
  int normalize;

  const float* mixing;  // [heads or 1][q_blocks][k_blocks]
  std::int64_t mixing_head_stride, mixing_row_stride;

  RowTensor q, k, v, o;
  const float* factor;  // [items][row_stride]: given row factors, or null (see shared_rows.h)
  int row_stride;       // tokens
};

// Shared memory: summaries [padded blocks], kFusedTiles row tiles per warp, token offsets. A
// summary is [width] rows of [width + pad] elements, and a pad: neither ldmatrix over its rows nor
// over the same entry of many summaries meets a bank conflict. Column `width` holds the key sums.
constexpr int fused_summary_elements(int width) { return width * (width + kFusedPad) + kFusedPad; }
constexpr int fused_tiles_bytes(int width) {  // per warp
  return kFusedTiles * kFusedRows * (width + kFusedPad) * 2;
}
constexpr int fused_bytes(int width, int padded_blocks, int warps, int offsets) {
  return padded_blocks * fused_summary_elements(width) * 2 + warps * fused_tiles_bytes(width) +
         offsets * 4;
}
// shared_position inside the kernel: products with z, then row factors, of blocks of 64 tokens.
inline constexpr int kFusedPositions = 64;
constexpr int fused_products_bytes(int padded_blocks) {
  return 2 * padded_blocks * kFusedPositions * 4;
}
constexpr int fused_max_warps(int width) { return width == 32 ? 12 : 8; }

struct FusedLaunch {
  int width, padded_blocks;  // see fused_kernel_exists
  bool regular;              // see Fused in fused_tile.cuh
  bool products;             // the kernel makes the row factors of shared_position
  int warps, grid, shared_bytes;
  void* stream;
};
bool fused_kernel_exists(int width, int padded_blocks);
bool fused_products_exist(int width, int padded_blocks);  // regular
void launch_fused(const FusedLaunch& launch, const FusedArgs& args);

}  // namespace mhla::cuda::sm90
