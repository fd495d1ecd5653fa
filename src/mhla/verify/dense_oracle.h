// The operator written as the dense formula A_st = m[b(s), b(t)] * scale * (phi(q_s) . phi(k_t)),
// with every score materialised, and its gradient. It shares no code with the implementations it
// judges: blocks are computed here from the grid and the cut alone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "mhla/problem.h"

namespace mhla::verify {

// Where a token lies, computed from its raster number by division.
struct TokenPlace {
  std::int64_t block = 0;     // inside the sequence: row or column of the mixing matrix
  std::int64_t position = 0;  // raster order inside the block
  std::array<std::int64_t, 3> coordinate{};  // inside the block, per axis
};
// One entry per packed sequence, tokens in natural order.
std::vector<std::vector<TokenPlace>> token_places(const BlockLayout& layout);

// Row-major f64 tensors; a tensor that the problem does not have is empty.
struct DenseInputs {
  std::vector<double> q, k, v;       // [B, N, H, D]
  std::vector<double> q_den, k_den;  // with separate_denominator
  std::vector<double> mixing;        // [Mq, Mk] or [H, Mq, Mk]
  std::int64_t mixing_rows = 0, mixing_cols = 0;
  std::vector<double> d_o;  // [B, Nq, H, dv]; empty: forward only
};

struct DenseTensors {
  std::vector<double> o;
  std::vector<double> d_q, d_k, d_v, d_mixing, d_q_den, d_k_den;
};

// `mass` bounds the rounding error of any sensible order of evaluation, to first order and in units
// of the unit roundoff: |computed - value| <= unit_roundoff * mass * small constant. It comes from
// a running error analysis: a product a*b costs |a| mass(b) + |b| mass(a) + |ab|, a quotient
// likewise, a sum of n terms sum(mass) + sqrt(n) * sum|terms| (rounding errors of partial sums are
// signed, so they grow like a random walk).
struct DenseAnswer {
  DenseTensors value;
  DenseTensors mass;
};
DenseAnswer dense_oracle(const Problem& problem, const DenseInputs& inputs);

// The same formula as a plain low-precision program computes it: every intermediate tensor is
// rounded to the dtype, sums accumulate in f32. Its error is the yardstick for bf16 and f16.
DenseTensors dense_naive(const Problem& problem, const DenseInputs& inputs, DType dtype);

}  // namespace mhla::verify
