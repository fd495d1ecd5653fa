// What the host tells the dense kernels: one struct for all of them, and the shared-memory plan.
//
// Every kernel walks the score matrix in tiles of 64 rows by 64 columns. Rows are queries and
// columns keys in the forward and in the kernel of d_q; the kernel of d_k and d_v is transposed.
// Each side brings a tensor that passes the feature map (x: q or k) and one that does not (z: v or
// d_o).
#pragma once

#include <cstdint>

#include "mhla/cuda/device/blocks.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kTile = 64;          // tokens of a tile: rows of a warpgroup's product
inline constexpr int kMaxSlots = 8;       // column tiles in shared memory
inline constexpr int kMaxRowBuffers = 2;  // row tiles of a warpgroup in shared memory
// Weights of a row block for 64 columns: the 16 columns of a quad's thread lie together, 80 bytes
// from one thread's to the next, which keeps 16-byte loads of a warp apart.
inline constexpr int kQuadStride = 20, kWeightStride = 4 * kQuadStride;  // floats
inline constexpr int kMaxBlocks = 64;      // rows or columns of the mixing matrix
inline constexpr int kMaxWidth = 128;      // dk and dv
inline constexpr int kBarrierBytes = 384;  // three a slot and row buffer

enum class Feature : int { relu_eps, relu, elu1, identity };  // the order of mhla::FeatureMap

enum class DenseKernel : int { forward, d_query, d_key };

// Warpgroups that compute; one more loads. Three where their registers allow it: the products of
// one hide the arithmetic of another.
constexpr int compute_warpgroups(DenseKernel kernel, int width) {
  return kernel != DenseKernel::d_key && width <= 72 ? 3 : 2;
}
constexpr int dense_threads(int warpgroups) { return 128 * (warpgroups + 1); }
// NOTE: setmaxnreg deals out what the block got at launch, 65536 / threads each, rounded down to a
// multiple of 8; asking for more would hang.
constexpr int compute_registers(DenseKernel kernel, int width) {
  if (kernel == DenseKernel::d_key) return width >= 72 ? 224 : 216;
  if (compute_warpgroups(kernel, width) == 2) return 216;
  return 152;
}
constexpr int loader_registers(DenseKernel kernel, int width) {
  const int warpgroups = compute_warpgroups(kernel, width), threads = dense_threads(warpgroups);
  return 65536 / threads / 8 * 8 * (warpgroups + 1) - warpgroups * compute_registers(kernel, width);
}

enum class Seen : int { all, blocks_before, tokens_before };  // none, block_causal, causal

// Rows that one thread block works on, and the columns they see.
struct DenseGroup {
  int row_first, rows;  // tokens
  int column_first, columns;
};

// Factors of a query's scores: P = m * S * scale, dS = m * (dP - mean) * scale.
struct RowFactor {
  float scale;  // scale / (scale * denominator + eps)
  float mean;   // <d_o, o>
};

struct DenseArgs {
  const DenseGroup* groups;           // [groups_count]
  const std::uint16_t* row_block;     // [row tokens]: row of the mixing matrix (column, transposed)
  const std::uint16_t* column_block;  // [column tokens]
  const int* row_order;     // [row tokens]: rank by (block, position), for Seen::tokens_before
  const int* column_order;  // [column tokens]
  int groups_count, items;  // items = batch * heads * groups_count
  int heads;
  int dk, dv;
  Feature feature;
  Seen seen;
  int normalize;
  float scale, eps;

  const float*
      mixing;  // weight of (row block i, column block b) at i * row_stride + b * column_stride
  std::int64_t mixing_head_stride;
  int mixing_row_stride, mixing_column_stride;
  int row_blocks, column_blocks;  // of the mixing matrix

  RowTensor row_x, row_z;        // [B, row tokens, H, dk], [B, row tokens, H, dv]
  RowTensor column_x, column_z;  // [B, column tokens, H, dk], [B, column tokens, H, dv]
  RowTensor out_x, out_z;        // d_q or d_k [.., dk]; o or d_v [.., dv]; data may be null

  RowFactor* factors;          // [B * H][query tokens]
  std::int64_t factor_stride;  // query tokens
  float* mixing_sums;          // [slots][key tokens][mixing_blocks], see dense_reduce.cu
  std::int64_t mixing_sums_stride;
  int mixing_sums_by_head;  // slot = (batch, head) instead of thread block

  // Shared memory: barriers, row tiles [warpgroup][buffer], tables, column slots.
  int slots, row_buffers, slot_bytes;
  int tables, table_bytes;
  int tables_stay;  // one table a column tile, written once; otherwise one a slot
  int resident;     // all columns of a group fit the slots and are loaded once
};

// Byte offsets inside a column slot. ones: z carries eight more columns, (1, 0, ..., 0).
// sums: what the kernel of d_k and d_v needs.
struct SlotPlan {
  int z, factors, bytes;
};
constexpr SlotPlan slot_plan(int width, bool ones, bool sums) {
  SlotPlan plan{};
  plan.z = kTile * width * 2;
  plan.factors = plan.z + kTile * (width + (ones ? 8 : 0)) * 2;
  plan.bytes = plan.factors + (sums ? kTile * 8 : 0);
  return plan;
}
// Byte offsets inside what depends on the blocks of a column tile only; the weights come first.
struct TablePlan {
  int order, one_hot, bytes;
};
constexpr TablePlan table_plan(int row_blocks, bool sums, int mixing_blocks) {
  TablePlan plan{};
  plan.order = (row_blocks * kWeightStride * 4 + 127) / 128 * 128;
  plan.one_hot = plan.order + kTile * 4;
  plan.bytes = plan.one_hot + (sums ? kTile * mixing_blocks * 4 : 0);
  return plan;
}

}  // namespace mhla::cuda::sm90
