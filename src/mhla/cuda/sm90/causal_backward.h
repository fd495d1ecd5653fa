// The causal backward: what the host tells the kernel, and its shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mhla/cuda/sm80/mixing_args.h"
#include "mhla/cuda/sm90/causal_args.h"
#include "mhla/mhla.h"

namespace mhla::cuda::sm90 {

// Widths of the kernel: dk, and the columns of dv that are worked on at a time.
inline constexpr int kGradientWidth = 128, kGradientColumns = 64;
inline constexpr int kGradientThreads = 512;  // three warpgroups that compute and one that loads
// NOTE: setmaxnreg deals out 128 registers for each of 512 threads.
inline constexpr int kGradientRegisters = 160, kGradientLoaderRegisters = 32;

struct CausalGradientArgs {
  CUtensorMap q, k, v, d_o;     // boxes of 64 columns and 64 tokens
  CUtensorMap mixed, gradient;  // S~ and dS: boxes of 64 columns and 128 rows
  CUtensorMap d_q, d_k;         // boxes of 32 columns and 16 tokens
  CUtensorMap d_v;              // boxes of 64 columns and 16 tokens
  int items, blocks;            // items: blocks of all pairs
  int slots;                    // pair p lies in slot p % slots of S~ and dS
  int heads;
  int columns;  // parts of 64 columns of dv
  Feature feature;
  float scale;
  const float* diagonal;  // [blocks]: m_ii
  float* terms;           // [batch * all heads][blocks]: gradient of m_ii
};

// Byte offsets.
struct CausalGradientPlan {
  static constexpr int kStages = 3, kRowBuffers = 2;
  static constexpr int kRows = kTile * kGradientWidth * 2;  // of q or k
  static constexpr int kMatrix = kGradientWidth * kGradientColumns * 2;
  static constexpr int kStage = 2 * kBoxBytes + 2 * kMatrix;  // d_o, v, S~, dS
  static constexpr int kRowsAt = kStages * kStage;
  static constexpr int kOut = kRowsAt + kRowBuffers * 2 * kRows;
  static constexpr int kOutWarp = 1024, kOutWarpValues = 2048;  // of d_q and d_k, of d_v
  static constexpr int kBarriers = kOut + 8 * kOutWarp + 4 * kOutWarpValues;
  static constexpr int kTerms = kBarriers + 128;
  static constexpr int kBytes = kTerms + 16;
};
static_assert(CausalGradientPlan::kBytes <= 232448);

// S and dS~, for dv of 129 to 256: two matrices of 128 columns each.
inline constexpr int kSummaryWidth = 256;

struct CausalSummaryArgs {
  CUtensorMap x[2], y[2];  // k and q, v and d_o: boxes of 64 columns and 64 tokens
  CUtensorMap out[2];      // S and dS~: boxes of 64 columns and 64 rows
  int items, blocks;       // items: summaries of both kinds that are made
  int slots;               // pair p lies in slot p % slots of S and dS~
  int heads;
  Feature feature;
  float scale;
};
struct CausalSummaryPlan {
  static constexpr int kStages = 3;
  static constexpr int kStage = kTile * (kGradientWidth + kSummaryWidth) * 2;
  static constexpr int kOut = kStages * kStage, kOutHalf = kTile * kSummaryWidth * 2;
  static constexpr int kBarriers = kOut + 2 * kOutHalf;
  static constexpr int kBytes = kBarriers + 64;
};
static_assert(CausalSummaryPlan::kBytes <= 232448);

// All steps in one kernel: thread blocks of each step run side by side, a pair behind one another,
// so that summaries live in the L2 cache and their memory is used again.
struct CausalChainArgs {
  CausalSummaryArgs summaries;
  PairMixArgs mixing;
  CausalGradientArgs gradients;
  int summary_blocks, mixing_blocks, gradient_blocks;  // thread blocks of each step
  // Counters, [pairs]: summaries made, tiles mixed, blocks read. Zero at the start.
  unsigned *made, *mixed, *read;
};
void launch_causal_chain(const CausalChainArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
