// The forward of heads of 16 blocks with 16 tokens each, taken position by position: what the host
// tells it, and its shared memory.
//
// Rows of a tile are ordered by (position inside the block, block). The 16 rows of a warp are then
// all blocks at one position, and so are 16 neighbouring columns of scores: the mixing weights of a
// thread are eight registers for the whole kernel, and the denominators of shared_position, which
// add up blocks at one position, never leave the warp.
#pragma once

#include "mhla/cuda/sm90/dense_short.h"

namespace mhla::cuda::sm90 {

inline constexpr int kPositionBlocks = 16;  // rows of the mixing matrix, and of a warp
inline constexpr int kPositions = 16;       // tokens of a block
inline constexpr int kPositionQueueTiles = 8;
// The warpgroups of a thread block beside the one that loads.
struct PositionTeam {
  int computing;
  bool local;  // one more does nothing but the local term

  constexpr int all() const { return computing + local; }
  // With a quarter of a tile's scores in registers twice; otherwise with both halves of them.
  constexpr bool quarters() const { return all() == 3; }
  // Registers of a thread, and of one that loads: 65,536 in all.
  constexpr int registers() const { return quarters() ? 160 : 224; }
  constexpr int loader_registers() const { return quarters() ? 32 : 56; }
};
// There are three in bf16 under shared_position: row sums of other normalisers take four registers
// too many, and f16 fits all scores of a row before it rounds them. These have two.
constexpr PositionTeam position_team(bool bf16, bool shared, bool local) {
  if (!bf16 || !shared) return {2, false};
  return local ? PositionTeam{2, true} : PositionTeam{3, false};
}

// The local term is a 3 x 3 convolution. Computing warps multiply its taps two at a time, the tenth
// is the bias, with ones.
inline constexpr int kTaps = 9, kTapPairs = 5;
// Bytes of the taps of one channel in eight: a word for every pair and group of eight channels, and
// 16 bytes more, so that 16-byte loads of eight channels meet different banks.
inline constexpr int kTapStride = kTapPairs * 8 * 4 + 16;

// Byte offsets; k is at 0. Rings of four halves of keys and of values, which are two heads, and of
// eight tiles of queries; a tile of outputs for each warpgroup, or a ring of four, where the local
// term is written first. Row sums need ones; computing warps that add the local term need them too,
// taps and their rows.
struct PositionPlan {
  int v, q, o, ones, zeros, taps, rows, barriers, bytes;
};
inline constexpr int kPositionOutputTiles = 4;  // of the ring
inline constexpr int kPositionBarriers = 5 * 4 + 2 * kPositionQueueTiles + 2 * kPositionOutputTiles;
constexpr PositionPlan position_plan(PositionTeam team) {
  constexpr int kWidth = 64, kHalfBytes = kHalf * kWidth * 2, kTileBytes = kTile * kWidth * 2;
  const bool quarters = team.quarters();
  PositionPlan plan{};
  plan.v = 4 * kHalfBytes;
  plan.q = plan.v + 4 * kHalfBytes;
  plan.o = plan.q + kPositionQueueTiles * kTileBytes;
  plan.ones = plan.o + (team.local ? kPositionOutputTiles : team.computing) * kTileBytes;
  plan.zeros = plan.ones + (quarters ? 0 : 2048);
  plan.taps = plan.zeros + 128;
  plan.rows = plan.taps + (quarters ? 0 : 2 * 8 * kTapStride);  // see TapRows
  plan.barriers = plan.rows + (quarters ? 0 : kPositions * kTapPairs * 32 * 2);
  plan.bytes = plan.barriers + kPositionBarriers * 8;
  return plan;
}
static_assert(position_plan({2, false}).bytes <= 227 * 1024);
static_assert(position_plan({3, false}).bytes <= 227 * 1024);
static_assert(position_plan({2, true}).bytes <= 227 * 1024);
static_assert(position_plan({2, false}).ones % 1024 == 0);

// A tensor map has the axes column, block across, block down, token across, and one for all else,
// along which a head, a picture and a line of the grid are so many steps apart.
struct PositionSteps {
  int head, batch, line;
};

struct PositionArgs : ShortArgs {  // maps[.][0] only, boxes of 64 tokens, of 16 for o
  PositionSteps steps[4];          // q, k, v, o
  int block_width, block_height;   // tokens
  int across, down;                // blocks
  const void* narrow_mixing;       // instead of dense.mixing, in the type of v; or null
  const void* tap_weight;          // [H * dv][kTaps], in the type of v; null: no local term
  const void* tap_bias;            // [H * dv], or null
};

// Whether the kernel serves a problem: one sequence or grid of 256 tokens, cut into 16 equal blocks
// of four, eight or 16 tokens across, dk and dv from 33 to 64, one mixing matrix for all heads, no
// mask inside blocks, any normaliser.
bool serves_positions(const Problem& problem);
// Whether it adds a convolution of this many tokens along each axis, 1 for those it lacks.
bool serves_local(const Problem& problem, const std::array<std::int64_t, 3>& kernel);
// All but the tensors of a call and `dense`.
PositionArgs position_args(const Problem& problem, int processors);
// Describes the tensors of a call; false where the copy engine cannot read them.
bool position_tensors(PositionArgs& args, const ForwardInputs& inputs, const TensorView& o);
// shared: shared_position.
void launch_dense_position(DType dtype, bool shared, const PositionArgs& args, void* stream);
// Compiled in dense_position_<type>.cu.
template <typename T>
void launch_position(bool shared, const PositionArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
