// What the host tells the kernels that spread one head over a cluster of thread blocks. Blocks of
// the layout are boxes of 64 tokens, which the copy engine fetches from the token grid.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/feature_map.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kBoxTokens = 64;  // rows of a warpgroup's product

// A CUtensorMap: how a [B, N, H, D] tensor lies in memory, and the box to fetch from it.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

// Blocks of a layout in raster order: `across` of them in a row of the token grid.
struct BoxGrid {
  int blocks, across, width, height;
  int across_inverse;  // 2^16 / across, rounded up: exact for up to 64 blocks
};
constexpr int box_inverse(int n) { return 65536 / n + 1; }

struct BoxArgs {
  TensorMap q, k, v, o;          // o: forward
  TensorMap d_o, d_q, d_k, d_v;  // backward
  BoxGrid q_grid, k_grid;
  int items, heads;  // items = batch * heads
  int slots;         // blocks that a thread block of the cluster keeps
  int slots_inverse;
  Map map;
  float scale, eps;
  int normalize;
  const float* mixing;  // [heads or 1][q_blocks][k_blocks]
  std::int64_t mixing_head_stride, mixing_row_stride;
  // Backward
  int has_d_q, has_d_k, has_d_v;
  // Gradients of the weights, [padded blocks][padded blocks] for every thread block, or for every
  // [batch][rank][head] when heads have their own weights; or null.
  float* partial;
  int per_head;
  // shared_position: of every query in natural order, [items][row_stride]; or null
  const float *factor, *gradient;
  int row_stride;
};

// D: head width. MT: 16-row tiles of the mixing matrix, both ways. C: thread blocks of a cluster,
// W: teams of a thread block, which take a block at a time. S: pairs of tiles per team. P: thread
// blocks that should share a multiprocessor. T: warpgroups of a team. kInPlace: the summary of a
// block takes the place of its keys and values, and so does its mixture; queries have a tile of
// their own. There is a team for every slot then.
template <int D_, int MT_, int C_, int W_, int S_, int P_, int T_ = 1, bool kInPlace_ = false>
struct Boxes {
  static constexpr int D = D_, MT = MT_, C = C_, W = W_, T = T_;
  static constexpr bool kInPlace = kInPlace_;
  static constexpr int kStages = S_, kPerProcessor = P_;
  static_assert(D == 32 || D == 64 || D == 96);
  static_assert(T == 1 || (T == 2 && D == 96));
  // Small products while a large one is under way, instead of before it. NOTE: they read operands
  // of the large one, which nothing writes until it was waited for.
  static constexpr bool kOverlaps = D == 96;
  static constexpr int kTeam = T * 128, kThreads = W * kTeam, kWarps = W * T * 4;
  // The copy engine swizzles rows of 64 or 32 columns: 96 are three panels, one behind another.
  static constexpr int kPanelColumns = D == 64 ? 64 : 32, kPanels = D / kPanelColumns;
  static constexpr int kPanel = kBoxTokens * kPanelColumns * 2;  // bytes
  static constexpr int kTile = kPanels * kPanel;
  // A summary in groups of 128 bytes: 8x8 core matrices [D / 8][D / 8], then z, padded with zeros.
  // Summaries start 16 bytes apart modulo 128, so that the same entry of eight never shares a bank.
  static constexpr int kKeySums = D * D * 2;  // byte offset of z
  static constexpr int kGroups = D * D / 64 + (D + 63) / 64;
  static constexpr int kSummary = kGroups * 128 + 16;
  static constexpr int kTiles = kInPlace ? 3 : 2 * kStages;  // of a team
  static constexpr int kSummaryStride = kInPlace ? kTiles * kTile : kSummary;
  static_assert(!kInPlace || (kSummary <= 2 * kTile && MT * 16 <= C * W && kStages == 2));
  // A thread block mixes this many groups of every summary.
  static constexpr int kShare = (kGroups + C - 1) / C;
  static constexpr int kSlice = kShare * 128 + 16;
  static constexpr int kSlices = MT * 16 * kSlice;  // of all summaries, zeros past the last
  // Backward: e of 64 rows per team, two bf16 each, and a 16 x 16 matrix of sums per warp, in whose
  // place the warpgroups of a team exchange two numbers a row.
  // Behind them, with shared_position, z of every block of the thread block, and then dz.
  static constexpr int kScalars = W * 256, kSums = MT == 1 ? kWarps * 1024 : 0;
  static_assert(T == 1 || kSums >= W * T * kBoxTokens * 8);

  // Weights that all heads share, both ways, as first factors: four words a lane.
  static constexpr bool kKeepsWeights = D == 96 && MT == 1;
  static constexpr int kWeights = kKeepsWeights ? 2 * 32 * 16 : 0;

  static constexpr int tiles_bytes() { return W * kTiles * kTile; }
  static constexpr int summaries_bytes(int slots) {
    constexpr int kUnit = D == 96 ? 16 : 128;  // NOTE: at width 96 every byte counts
    return kInPlace ? 0 : (slots * kSummary + kUnit - 1) / kUnit * kUnit;
  }
  // Tiles, this thread block's summaries, slices of all summaries (backward: of their gradients
  // too), weights, barriers.
  static constexpr int bytes(bool backward, bool shared, int slots) {
    return tiles_bytes() + summaries_bytes(slots) +
           (backward ? 2 * kSlices + kScalars + kSums : kSlices) + kWeights + kBarriers +
           (backward && shared ? slots * kOwnSums : 0);
  }
  static constexpr int kBarriers = (W * kStages + 4) * 8, kOwnSums = D * 2;
};

struct BoxLaunch {
  int width, blocks;  // the larger number of blocks of the two layouts
  bool backward, shared;
  int clusters;
  void* stream;
};
// Thread blocks of a cluster; 0 when there is no kernel.
int box_cluster(int width, int blocks, bool backward);
int box_padded_blocks(int width, int blocks);
// Clusters that run side by side on the current device.
int box_active_clusters(int width, int blocks, bool backward, bool shared);
inline constexpr int kMostClusters = 128;  // bounds the partial sums
void launch_boxes(const BoxLaunch& launch, const BoxArgs& args);

struct BoxReduceArgs {
  const float* partial;  // [splits][matrices][padded][padded]
  int splits, matrices, padded;
  int q_blocks, k_blocks;  // weights beyond them are never read: zero
  int rows, cols;          // of d_mixing
  float* d_mixing;
  std::int64_t head_stride, row_stride, col_stride;
};
void launch_box_reduce(const BoxReduceArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
