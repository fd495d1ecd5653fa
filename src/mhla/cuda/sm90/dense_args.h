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

inline constexpr int kTile = 64;           // tokens of a tile: rows of a warpgroup's product
inline constexpr int kWarpgroups = 2;      // that compute; a third one loads
inline constexpr int kThreads = 128 * (kWarpgroups + 1);
// NOTE: the threads of a block share what was there at launch, 168 registers each: a sum above
// kThreads * 168 would hang.
inline constexpr int kLoaderRegisters = 72, kComputeRegisters = 216;
static_assert(128 * (kLoaderRegisters + kWarpgroups * kComputeRegisters) <= kThreads * 168);
inline constexpr int kMaxSlots = 8;        // column tiles in shared memory
inline constexpr int kMaxRowBuffers = 2;   // row tiles of a warpgroup in shared memory
inline constexpr int kWeightStride = 72;   // floats; 8 banks from one block to the next
inline constexpr int kMaxBlocks = 64;      // rows or columns of the mixing matrix
inline constexpr int kMaxWidth = 128;      // dk and dv
inline constexpr int kBarrierBytes = 384;  // three a slot and row buffer

enum class Feature : int { relu_eps, relu, elu1, identity };  // the order of mhla::FeatureMap
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
  const int* row_order;               // [row tokens]: rank by (block, position), for Seen::tokens_before
  const int* column_order;            // [column tokens]
  int groups_count, items;            // items = batch * heads * groups_count
  int heads;
  int dk, dv;
  Feature feature;
  Seen seen;
  int normalize;
  float scale, eps;

  const float* mixing;  // weight of (row block i, column block b) at i * row_stride + b * column_stride
  std::int64_t mixing_head_stride;
  int mixing_row_stride, mixing_column_stride;
  int row_blocks;  // rows of the weight table

  RowTensor row_x, row_z;        // [B, row tokens, H, dk], [B, row tokens, H, dv]
  RowTensor column_x, column_z;  // [B, column tokens, H, dk], [B, column tokens, H, dv]
  RowTensor out_x, out_z;        // d_q or d_k [.., dk]; o or d_v [.., dv]; data may be null

  RowFactor* factors;          // [B * H][query tokens]
  std::int64_t factor_stride;  // query tokens
  float* mixing_sums;          // [slots][key tokens][mixing_blocks], see dense_reduce.cu
  std::int64_t mixing_sums_stride;
  int mixing_sums_by_head;     // slot = (batch, head) instead of thread block

  // Shared memory: barriers, row tiles [warpgroup][buffer], column slots.
  int slots, row_buffers, slot_bytes;
  int tables_stay;  // a slot always holds the same columns, and so do its tables
  int resident;     // all columns of a group fit the slots and are loaded once
};

// Bytes of one column slot, part by part.
struct SlotPlan {
  int z, weights, order, factors, one_hot, bytes;
};
// ones: z carries eight more columns, (1, 0, ..., 0). sums: what the kernel of d_k and d_v needs.
constexpr SlotPlan slot_plan(int width, int row_blocks, bool ones, bool sums, int mixing_blocks) {
  SlotPlan plan{};
  plan.z = kTile * width * 2;
  plan.weights = plan.z + kTile * (width + (ones ? 8 : 0)) * 2;
  plan.order = plan.weights + (row_blocks * kWeightStride * 4 + 127) / 128 * 128;
  plan.factors = plan.order + kTile * 4;
  plan.one_hot = plan.factors + (sums ? kTile * 8 : 0);
  plan.bytes = plan.one_hot + (sums ? kTile * mixing_blocks * 2 : 0);
  return plan;
}

}  // namespace mhla::cuda::sm90
