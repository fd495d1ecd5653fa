// Sizes, heads and workspace that the kernels of every instruction set agree on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mhla/core/implementation.h"

namespace mhla::cpu {

using Index = std::ptrdiff_t;

// Row-major operands are cut into chunks of this many columns. The stride between their rows is a
// compile-time constant with an odd number of cache lines, so that rows fall into different sets.
inline constexpr Index kChunk = 256;
inline constexpr Index kRowStride = kChunk + 16;
// Tokens that are packed at once: a chunk of scores then is one row-major chunk.
inline constexpr Index kTokens = 256;
inline constexpr Index kWidestLanes = 16;
inline constexpr Index kAmxRows = 16;  // of a matrix register
// Panels of a block that lie together in a stack of summaries: long enough to be read by a hardware
// prefetcher and to need few pages, and odd, so that blocks fall into different sets of the cache.
inline constexpr Index kGroup = 7;
// Pieces of late mixing, each with its own part of d_mixing: whatever the number of threads, so
// that it does not change the sum.
inline constexpr Index kStrands = 16;

constexpr Index round_up(Index x, Index multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// All that is summed and mixed of one block, flattened: the matrix K^T V or V^T K as panels, then
// the key sum (exact normaliser) or q . z by coordinate (shared_position). Mixing walks over it in
// panels of two vectors, whatever they mean.
struct Flat {
  // `halved`: neighbouring rows of the matrix are pairs of bf16, one in place of each float.
  Flat(const Problem& problem, bool transposed, Index lanes, bool halved = false);
  // Floats of `blocks` of them, side by side for mixing.
  Index stack(Index blocks) const { return round_up(size, kGroup * 2 * lanes) * blocks; }

  Index rows, width;   // of the summary matrix
  Index extra;         // where the normaliser's part begins
  Index extra_length;  // without padding
  Index size;          // a multiple of two vectors
  Index lanes;
};

struct Geometry {
  Geometry(const Problem& problem, Index lanes);
  // Position of a block's token in the largest block's raster.
  Index coordinate(const Block& block, Index position) const {
    const Index x = position % block.extent[2], y = position / block.extent[2] % block.extent[1];
    const Index a = position / block.extent[2] / block.extent[1];
    return (a * box[1] + y) * box[2] + x;
  }

  Index tokens;  // packed at once, at most kTokens
  Index dk_chunks, dv_chunks;
  Index dk_padded, dv_padded;  // to whole vectors
  Index mq, mk;                // blocks of the longest sequence
  Index box[3];                // largest block, per axis: coordinates of shared_position
  bool normalized, shared, causal;
  bool one_chunk;  // blocks are packed at once
  bool masked;     // later blocks see earlier ones: what is mixed may replace what it is mixed of
};

// Backward, nothing divides: gradients of S~ are known before S~, so that one pass mixes both, each
// in place.
constexpr bool mixes_late(const Geometry& g) { return g.masked && !g.normalized; }

// Whether bf16 is multiplied in pairs where the machine has dot products of them. Over summaries of
// fewer entries that saves nothing, and too few roundings are averaged in a result.
constexpr bool pairs_up(const Problem& problem) {
  constexpr Index kFewestEntries = 256;
  return problem.dtype == DType::bf16 && problem.dk * problem.dv >= kFewestEntries;
}

// Where products of pairs make and read summaries, these are kept in bf16 as well: each is the sum
// of one product. Backward, where one visit of a block does all.
constexpr bool halves_summaries(const Geometry& g, bool backward) {
  return g.one_chunk && (!backward || (g.causal && !g.normalized));
}

constexpr Index HalfUp(Index x) { return (x + 1) / 2; }

// scale / denominator from the raw sum; a vanishing denominator gives 0.
inline float factor_of(const Problem& problem, float sum) {
  const float scale = static_cast<float>(problem.scale);
  if (problem.normalizer == Normalizer::none) return scale;
  const float denominator = scale * sum + static_cast<float>(problem.denominator_eps());
  return denominator == 0 ? 0.0f : scale / denominator;
}

// One (batch, head, sequence): where its rows are.
struct Rows {
  char* data = nullptr;  // token 0
  Index stride = 0;      // elements
};

struct Head {
  const Block* query_blocks;
  const Block* key_blocks;
  Index mq, mk;
  Rows q, k, v, q_den, k_den, o, d_o;
  Rows d_q, d_k, d_v, d_q_den, d_k_den;
  const float* mixing;
  Index mixing_stride;
};

// Number of (batch, head, sequence) and how to reach one.
Index head_count(const Problem& problem);
Head forward_head(const Problem& problem, const ForwardInputs& in, const ForwardOutputs& out,
                  Index at);
Head backward_head(const Problem& problem, const BackwardInputs& in, const BackwardOutputs& out,
                   Index at);
void clear_mixing(const TensorView& d_mixing);  // nothing when it was not asked for
// Row i of the gradients of d_mixing that heads first, first + 1, ... have left in `shares`, always
// in the order of heads, so that the sum does not depend on the number of threads.
void add_shares(const Problem& problem, const BackwardOutputs& out, const float* shares,
                Index first, Index count, Index i);

// Blocks follow each other at a distance that is no multiple of a large power of two, which would
// put them all into the same sets of the caches.
constexpr Index mixed_stride(Index flat_size, Index lanes) {
  return (flat_size / (2 * lanes) | 1) * 2 * lanes;
}

// Hands out parts of a workspace; without memory it only counts.
class Arena {
 public:
  explicit Arena(void* data) : data_(static_cast<char*>(data)) {}
  float* floats(Index count) { return static_cast<float*>(take(count * Index{sizeof(float)})); }
  Index* indices(Index count) { return static_cast<Index*>(take(count * Index{sizeof(Index)})); }
  std::size_t bytes() const { return static_cast<std::size_t>(used_); }

 private:
  void* take(Index bytes) {
    void* part = data_ ? data_ + used_ : nullptr;
    used_ += round_up(bytes, kWorkspaceAlignment);
    return part;
  }
  char* data_;
  Index used_ = 0;
};

// What one thread packs into.
struct Scratch {
  Scratch(const Problem& problem, bool backward, Arena& arena);

  float* a;        // row-major, chunks of kTokens rows
  float* a2;       // backward or causal: a second one
  float* a3;       // causal or shared_position backward
  float* scores;   // causal: row-major [tokens, tokens]
  float* scores2;  // causal backward
  float* scores3;  // the same in pairs
  float* b;        // panels [tokens, dk or dv]
  float* b2;       // backward or causal
  float* b3;       // causal backward
  float* result;   // [tokens, dk or dv padded]
  float* matrix;   // backward: one summary, transposed
  float* flat;     // mixing in place: one block of the stack, contiguous
  float* paired;   // bf16 backward: one summary as pairs
  float* open;     // causal backward with blocks longer than a chunk: their chunks so far
  float* row;      // a few vectors of dk
  float* factor;   // a few vectors of tokens
  Index* at;       // tokens of the chunk
};

// The summaries of a head in flight.
struct Slot {
  Slot(const Problem& problem, bool backward, Arena& arena);

  float* summaries;     // S [group, key block, panel of the group, two vectors]
  float* mixed;         // S~ [query block, Flat::size]; null: in the place of S
  float* mixing;        // packed for products: m, tile by tile
  float* mixing_pairs;  // the same in bf16, for summaries in bf16
  // Backward.
  float* d_mixed;        // dS~ as S
  float* d_summaries;    // dS [key block, Flat::size]; null: in the place of dS~
  float* mixing_t;       // packed m^T
  float* strands;        // late mixing: parts of d_mixing [kStrands, Mq, Mk]
  float* d_mixing;       // this head's share [Mq, Mk], set for each
  float* sums;           // shared_position: z_b [key block, dk]
  float* inverse;        // scale / denominator, by token of the layout
  float* d_denominator;  // scale * d_den, by token of the layout
};

}  // namespace mhla::cpu
