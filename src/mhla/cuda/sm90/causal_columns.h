// What the host tells the causal forward that keeps summaries on the chip, and its shared memory.
//
// A thread block owns 64 columns of dv of a pair (batch entry, head) and walks the sequence once:
// block by block it makes the summary's part of 128 x 64, mixes those of earlier blocks into S~,
// and reads q out. Parts of the last eight blocks lie in shared memory, mixed sums of those before
// them in the places that are still to be filled; what later groups want again is kept in memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mhla/cuda/sm90/dense_args.h"

namespace mhla::cuda::sm90 {

inline constexpr int kColumnsWidth = 64;  // of dv
inline constexpr int kColumnsGroup = 8;   // blocks whose parts lie in shared memory
inline constexpr int kColumnsMost = 32;   // blocks of a sequence: four groups
// Eight warps make and mix summaries, a warp's rows of dk are 16; four make results; of the last
// four one loads, two map keys and one stores results.
inline constexpr int kSummaryWarps = 8, kResultWarps = 4, kColumnsMapWarps = 2;
inline constexpr int kColumnsThreads = 512;
// NOTE: setmaxnreg deals out 128 registers for each of 512 threads.
inline constexpr int kSummaryRegisters = 160, kResultRegisters = 152, kMoverRegisters = 40;
static_assert(2 * kSummaryRegisters + kResultRegisters + kMoverRegisters <= 4 * 128);

struct ColumnsArgs {
  CUtensorMap q, k, v;                    // boxes of 64 columns and 64 tokens
  void* o;                                // bf16 [B, N, H, dv], rows that start on 16 bytes
  std::int64_t o_batch, o_token, o_head;  // strides
  int tokens, dv;
  int blocks;        // of 64 tokens, the last may be shorter
  int parts, items;  // parts of a pair, of all pairs
  int heads, dk;
  void* kept;  // [thread block][group][slot]: parts of 128 x 64 as they lay in shared memory
  int keeps;   // groups that are kept: all but the last two
  Feature feature;
  float scale;
  const float* mixing;  // [H or 1][blocks][blocks]
  std::int64_t mixing_head_stride, mixing_row_stride, mixing_column_stride;
};

// Byte offsets. Keys are mapped a block ahead, so that they have one more stage.
struct ColumnsPlan {
  static constexpr int kKeyStages = 3, kValueStages = 3;
  static constexpr int kWarpRows = 16 * kColumnsWidth * 2;  // bytes of a warp's rows
  static constexpr int kSlot = kSummaryWarps * kWarpRows;   // a part of 128 x 64
  static constexpr int kTileBytes = kTile * 128 * 2, kValueBytes = kTile * kColumnsWidth * 2;
  static constexpr int kKeys = kColumnsGroup * kSlot;
  static constexpr int kQueries = kKeys + kKeyStages * kTileBytes;
  static constexpr int kValues = kQueries + kTileBytes;
  static constexpr int kWeights = kColumnsGroup * kColumnsGroup * 4;  // of a group, for each warp
  static constexpr int kOut = kValues + kValueStages * kValueBytes;
  static constexpr int kNear = kOut + kValueBytes;
  static constexpr int kBarriers = kNear + kSummaryWarps * kWeights;
  static constexpr int kCount = 3 * kKeyStages + 2 * (2 + kValueStages + kColumnsGroup);
  static constexpr int kBytes = kBarriers + 8 * kCount;
};
static_assert(ColumnsPlan::kBytes <= 232448);

void launch_causal_columns(int grid, const ColumnsArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
