// What the host tells the causal kernel, and its shared-memory plan.
//
// Scores of 64 queries and 64 keys are multiplied by the one mixing weight of their blocks, which
// are made of whole tiles. Two warpgroups take 64 queries each, against the same stream of keys.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mhla/cuda/sm90/dense_args.h"

namespace mhla::cuda::sm90 {

inline constexpr int kCausalRows = 2 * kTile;  // queries of a thread block at a time
inline constexpr int kCausalThreads = 384;     // two warpgroups that compute and one that loads
// NOTE: setmaxnreg deals out 168 registers for each of 384 threads.
inline constexpr int kCausalRegisters = 240, kCausalLoaderRegisters = 24;
inline constexpr int kBoxBytes = kTile * 64 * 2;  // 64 tokens of 64 columns, as they are copied

struct CausalArgs {
  CUtensorMap q, k, v, o;  // boxes of 64 columns; of 16 tokens for o, of 64 for the others
  int tokens, tiles;       // tiles of 64 tokens
  // Tiles see the keys of their own group, and through `far` what lies before it. Units are pairs
  // of row tiles of a group, items those of all heads and groups.
  int group_tiles, units, group_items, items;
  int first_pair;  // (batch entry, head) of the first item
  int heads, dk;
  const void* far;  // [pair][row][half of dk][box of dv]: boxes of S~, or none
  int far_rows;     // of a pair; the first belongs to the second group
  int block_tiles;  // tiles of a block of the layout
  Feature feature;
  float scale;
  const float* mixing;  // [H or 1][blocks][blocks]
  std::int64_t mixing_head_stride, mixing_row_stride, mixing_column_stride;
};

// Byte offsets. k and v have rings of their own: products hold the keys of a tile and the values of
// the one before.
struct CausalPlan {
  int k_stages, v_stages;
  int v, q, o, barriers, bytes;
};
constexpr CausalPlan causal_plan(int dk, int dv) {
  constexpr int kShared = 232448;  // what a thread block of sm_90 can have
  constexpr int kBarriers = 256, kMost = 6;
  CausalPlan plan{};
  const int k = kTile * dk * 2, v = kTile * dv * 2;
  const int rows = kCausalRows * dk * 2, out = kCausalRows * (dv < 128 ? dv : 128) * 2;
  const int left = kShared - rows - out - kBarriers;
  plan.v_stages = (left - k) / (k + v) < kMost ? (left - k) / (k + v) : kMost;
  plan.k_stages = (left - plan.v_stages * v) / k < kMost ? (left - plan.v_stages * v) / k : kMost;
  plan.v = plan.k_stages * k;
  plan.q = plan.v + plan.v_stages * v;
  plan.o = plan.q + rows;
  plan.barriers = plan.o + out;
  plan.bytes = plan.barriers + kBarriers;
  return plan;
}
static_assert(causal_plan(128, 256).k_stages == 4 && causal_plan(128, 256).v_stages == 3);

// What the second group of blocks sees of the first: S~ of its blocks, made by a kernel ahead.
inline constexpr int kFarGroup = 16;  // blocks of a group
inline constexpr int kFarParts = 8;   // of a summary of 128 x 256: boxes of 64 x 64
// Two warpgroups that compute, a warp that loads, one that stores.
inline constexpr int kFarThreads = 320;
struct CausalFarArgs {
  CUtensorMap k, v;  // boxes of 64 columns and 64 tokens
  void* far;         // as above
  int rows;          // of it, of a pair
  int rows_stored;   // blocks of the second group
  int items;         // parts of all pairs
  int blocks;
  int first_pair, heads;
  Feature feature;
  float scale;
  const float* mixing;
  std::int64_t mixing_head_stride, mixing_row_stride, mixing_column_stride;
};
struct CausalFarPlan {
  static constexpr int kStages = 6, kStage = 2 * kBoxBytes;
  static constexpr int kSlot = kBoxBytes + 16;  // NOTE: matrices of eight slots in all banks
  static constexpr int kSlots = kStages * kStage;
  static constexpr int kBarriers = kSlots + kFarGroup * kSlot;
  static constexpr int kBytes = kBarriers + 8 * (2 * kStages + kFarGroup + 1);
};
static_assert(CausalFarPlan::kBytes <= 232448);
void launch_causal_far(int grid, const CausalFarArgs& args, void* stream);

// The compiled widths that hold these, or zeros.
struct CausalWidths {
  int dk = 0, dv = 0;
};
CausalWidths causal_widths(std::int64_t dk, std::int64_t dv);
void launch_causal(const CausalWidths& widths, int grid, const CausalArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
