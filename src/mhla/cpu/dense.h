// The dense form: what one thread works in, and what a call hands to the kernels.
//
// A head is one matrix of scores phi(q) phi(k)^T, scaled by the mixing weight of their block pair
// and computed a few query rows at a time; no summaries. A head belongs to one thread.
#pragma once

#include <span>

#include "mhla/cpu/geometry.h"

namespace mhla::cpu {

// Scores of a row are operands of a product, in chunks of kChunk; kMaxTerms of them are one call.
inline constexpr Index kDenseTokens = 8192;
// Query rows at a time, tiles of 14 or 6 rows: the keys' panels are read from L2 once for all of
// them. Behind a mask fewer, since all of them see as many keys as the last one.
constexpr Index dense_rows(bool masked) { return masked ? 28 : 56; }

struct DenseRoom {
  DenseRoom(const Problem& problem, bool backward, Arena& arena);

  Index* query_at;     // tokens in the order of blocks [Nq]
  Index* key_at;       // [Nk]
  Index* query_block;  // of each query [Nq]
  Index* query_begin;  // first query of each block [Mq + 1]
  Index* key_begin;    // [Mk + 1]
  float* rows;         // tokens on their way to panels, row-major [up to kTokens, dk or dv]
  float* q;            // row-major [rows, dk]
  float* keys_t;       // panels [dk, Nk]
  float* values;       // forward: panels [Nk, dv]
  float* scores;       // row-major [rows, Nk]
  float* weights;      // of one query block, by key [Nk]
  float* factor;       // scale / denominator [rows]
  float* result;       // [rows, dv padded]
  float* sums;         // shared_position: z_b [Mk, dk padded]
  float* own;          // shared_position: q . z of each query with its own block [Mk, box padded]
  // Backward.
  float* keys;       // panels [Nk, dk]
  float* values_t;   // panels [dv, Nk]
  float* g;          // d_o scaled, row-major [rows, dv]
  float* q_panels;   // [rows, dk]
  float* g_panels;   // [rows, dv]
  float* d_scores;   // row-major [rows, Nk]
  float* d_weights;  // of one query block, by key [Nk]
  float *d_q, *d_k;  // of mapped rows [Nq or Nk, dk padded]
  float* d_v;        // [Nk, dv padded]
  float* d_den;      // shared_position: by coordinate [Mq, box padded]
  float* d_own;      // [box padded]
};

struct DenseForwardCall {
  const Problem& problem;
  const ForwardInputs& in;
  const ForwardOutputs& out;
  Index heads;
  std::span<const DenseRoom> rooms;
};

struct DenseBackwardCall {
  const Problem& problem;
  const BackwardInputs& in;
  const BackwardOutputs& out;
  Index heads;
  std::span<const DenseRoom> rooms;
  float* d_mixing;  // shares of `wave` heads, one after another
  Index wave;
};

}  // namespace mhla::cpu
