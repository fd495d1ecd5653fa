// The forward for one sequence of 129 to 256 keys: what the host tells it, and its shared memory.
//
// A warpgroup multiplies 64 queries with 128 keys (a half) at a time; both halves of the scores of
// a row tile are in its registers at once. Tiles come through tensor maps and stay as the copy
// engine writes them: the first 64 (or 32) columns swizzled, then the remaining 0, 8 or 32.
#pragma once

#include <cuda.h>

#include <initializer_list>

#include "mhla/core/implementation.h"
#include "mhla/cuda/sm90/dense_launch.h"

namespace mhla::cuda::sm90 {

inline constexpr int kHalf = 128;                  // keys of a product
inline constexpr int kShortKeys = 2 * kHalf;       // at most
inline constexpr int kShortQueries = 512;          // at most
inline constexpr int kShortBlocks = 16;            // rows of the mixing matrix, at most
inline constexpr int kShortThreads = 3 * 128;      // two computing warpgroups, one that loads
inline constexpr int kShortRegisters = 232;        // of a computing thread
inline constexpr int kShortLoaderRegisters = 40;   // 2 * 232 + 40 = 3 * 168
inline constexpr int kShortSharedRegisters = 224;  // with shared_position
inline constexpr int kShortSharedLoaderRegisters = 56;
inline constexpr int kShortBarriers = 5 * 8 + 2 * 12;  // see ShortShared
inline constexpr int kShortFactorBarriers = 4;         // behind them, with shared_position

// Columns of the two parts of a tile.
constexpr int main_columns(int width) { return width >= 64 ? 64 : 32; }
constexpr int rest_columns(int width) { return width - main_columns(width); }

// Weights of a row block: those of a quad's thread lie together, 16 bytes more than a multiple of
// 128 apart, so that 16-byte loads of the four meet different banks. Pairs: one weight for every
// two neighbouring keys.
constexpr int short_quad_stride(bool pairs) { return kShortKeys / (pairs ? 8 : 4) + 4; }  // floats

// Shared memory: rings of key halves, of value halves and of query tiles, a tile of outputs for
// each warpgroup, ones, weights, row blocks, barriers. Four halves are two heads: one in use, one
// on its way.
// shared: with the row factors of the shared_position normaliser (dense_short_rows.cuh).
inline constexpr int kShortProducts = 512;       // most positions of all blocks, one more each
inline constexpr int kShortSharedQueries = 256;  // at most, with shared_position
struct ShortRowsPlan {
  int sums, products, factors, mixing, tokens, places;  // byte offsets
};
struct ShortPlan {
  int k_slots, v_slots, q_slots;
  int v, q, o, ones, weights, row_blocks, barriers, bytes;  // byte offsets; k is at 0
  ShortRowsPlan rows;
};
constexpr ShortPlan short_plan(int width, bool pairs, bool shared = false) {
  ShortPlan plan{};
  const bool crowded = width == 96;
  plan.k_slots = width == 32 ? 8 : crowded && !pairs ? 3 : 4;
  plan.v_slots = width == 32 ? 8 : crowded ? 3 : 4;
  plan.q_slots = width == 32 ? 12 : width == 64 ? 6 : width == 72 ? 5 : pairs ? 2 : 3;
  if (shared && width == 72) plan.q_slots = pairs ? 4 : 3;  // makes room
  plan.v = plan.k_slots * kHalf * width * 2;
  plan.q = plan.v + plan.v_slots * kHalf * width * 2;
  plan.o = plan.q + plan.q_slots * kTile * width * 2;
  plan.ones = plan.o + 2 * kTile * width * 2;
  // 16 rows of the part of v that they lengthen
  plan.weights = plan.ones + (width == 64 ? 2048 : 1024);
  plan.row_blocks = plan.weights + kShortBlocks * 4 * short_quad_stride(pairs) * 4;
  plan.barriers = plan.row_blocks + kShortQueries;
  plan.bytes = plan.barriers + (kShortBarriers + (shared ? kShortFactorBarriers : 0)) * 8;
  if (!shared) return plan;
  plan.rows.sums = plan.bytes;  // z [block][width + 4]: two blocks meet different banks
  plan.rows.products = plan.rows.sums + kShortBlocks * (width + 4) * 4;
  plan.rows.factors = plan.rows.products + kShortProducts * 4;  // of two heads
  plan.rows.mixing = plan.rows.factors + 2 * kShortSharedQueries * 4;
  plan.rows.tokens = plan.rows.mixing + kShortBlocks * kShortBlocks * 4;
  plan.rows.places = plan.rows.tokens + kShortProducts * 2;
  plan.bytes = plan.rows.places + kShortSharedQueries * 2;
  return plan;
}
constexpr bool short_plans_fit(std::initializer_list<int> widths, bool shared) {
  constexpr int kMostShared = 227 * 1024;  // bytes of a thread block
  for (const int width : widths) {
    for (const bool pairs : {false, true}) {
      if (short_plan(width, pairs, shared).bytes > kMostShared) return false;
    }
  }
  return true;
}
static_assert(short_plans_fit({32, 64, 72, 96}, false));
static_assert(short_plans_fit({64, 72}, true));

struct ShortArgs {
  // [q, k, v, o][main, rest]; boxes of 64 tokens for q, of 128 for k and v, of 16 for o.
  CUtensorMap maps[4][2];
  int queries, keys;
  int splits, split_rows;                 // rows of a head are shared by `splits` thread blocks
  int pairs;                              // neighbouring keys 2 i and 2 i + 1 are of one block
  int items;                              // batch * heads * splits
  int grid;                               // thread blocks
  int batch_step, head_step, split_step;  // from one item of a thread block to its next
  DenseArgs dense;                        // but for its tensors
  // shared_position: row factors that are given, [batch * heads][queries], or else what the kernel
  // needs to make them, [blocks][positions] as in shared_rows.h; both null otherwise.
  const float* factor;
  const int* tokens;
  int positions;
};

// The width of the compiled kernel that serves a problem, 0 if none does: one sequence, 129 to 256
// keys, up to 512 queries in up to 16 blocks, dk and dv up to 96, one mixing matrix for all heads,
// no mask inside blocks.
int short_width(const Problem& problem);
// Whether the kernel makes the row factors of shared_position itself.
bool short_makes_factors(const Problem& problem, int processors);
// All but the tensors of a call and `dense`.
ShortArgs short_args(const Problem& problem, int processors);
// Describes the tensors of a call; false where the copy engine cannot read them.
bool short_tensors(ShortArgs& args, int width, const ForwardInputs& inputs, const TensorView& o);
void launch_dense_short(DType dtype, int width, const ShortArgs& args, void* stream);
// Compiled in dense_short_<type>.cu.
template <typename T>
void launch_short(int width, const ShortArgs& args, void* stream);

}  // namespace mhla::cuda::sm90
