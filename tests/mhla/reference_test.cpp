// What the paper says about the operator, shown on the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/matrix_rank.h"
#include "support/tensors.h"

namespace mhla {
namespace {

using test::Call;
using test::relative_error;

constexpr double kRounding = 1e-13;  // f64 sums of a few hundred terms of order one

double phi(double x) { return std::max(x, 0.0) + kReluEps; }

// Global linear attention over the tokens [first, first + count) of a [1, N, 1, D] call.
std::vector<double> linear_attention(const Call& call, std::int64_t first, std::int64_t count) {
  const std::int64_t dk = call.problem.dk, dv = call.problem.dv;
  std::vector<double> o(static_cast<std::size_t>(count * dv));
  for (std::int64_t s = 0; s < count; ++s) {
    double total = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      double score = 0;
      for (std::int64_t d = 0; d < dk; ++d) {
        score += phi(call.q[(first + s) * dk + d]) * phi(call.k[(first + t) * dk + d]);
      }
      total += score;
      for (std::int64_t d = 0; d < dv; ++d) o[s * dv + d] += score * call.v[(first + t) * dv + d];
    }
    for (std::int64_t d = 0; d < dv; ++d) o[s * dv + d] /= total;
  }
  return o;
}

TEST(Reference, UniformMixingEqualsGlobalLinearAttention) {
  Call call({.dk = 8,
             .dv = 5,
             .layout = BlockLayout::grid({14, 14}, {.block = {4, 4}}),
             .dtype = DType::f64},
            1);
  std::fill(call.mixing.begin(), call.mixing.end(), 1.0 / 16);
  EXPECT_LT(relative_error(call.forward(), linear_attention(call, 0, 196)), kRounding);
}

TEST(Reference, BlockDiagonalMixingEqualsLocalLinearAttention) {
  Call call(
      {.dk = 6, .dv = 4, .layout = BlockLayout::sequence(40, {.block = {16}}), .dtype = DType::f64},
      2);
  for (std::size_t i = 0; i < 9; ++i) call.mixing[i] = i % 4 == 0 ? 0.3 : 0.0;
  call.forward();
  for (const auto& [first, count] : {std::pair{0, 16}, {16, 16}, {32, 8}}) {
    const auto local = linear_attention(call, first, count);
    const std::vector<double> part(call.o.begin() + first * 4,
                                   call.o.begin() + (first + count) * 4);
    EXPECT_LT(relative_error(part, local), kRounding);
  }
}

TEST(Reference, ConstantValuesArePreservedByTheExactNormalizer) {
  for (const Mask mask : {Mask::none, Mask::causal, Mask::block_causal}) {
    Call call({.heads = 2,
               .dk = 4,
               .dv = 3,
               .layout = BlockLayout::sequence(21, {.block = {8}}),
               .mask = mask,
               .dtype = DType::f64},
              3);
    std::fill(call.v.begin(), call.v.end(), 1.0);
    for (const double x : call.forward()) EXPECT_NEAR(x, 1.0, kRounding);
  }
}

TEST(Reference, CausalOutputsDoNotDependOnLaterTokens) {
  Call call({.dk = 4,
             .dv = 3,
             .layout = BlockLayout::sequence(21, {.block = {8}}),
             .mask = Mask::causal,
             .dtype = DType::f64},
            4);
  const auto before = call.forward();
  for (std::size_t i = 13 * 4; i < call.k.size(); ++i) call.k[i] += 1;
  for (std::size_t i = 13 * 3; i < call.v.size(); ++i) call.v[i] -= 2;
  const auto after = call.forward();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 13 * 3, after.begin()));
  EXPECT_NE(before[13 * 3], after[13 * 3]);
}

TEST(Reference, PackedSequencesGiveWhatEachGivesAlone) {
  const std::vector<std::int64_t> offsets{0, 9, 9, 10, 31};
  Call packed({.dk = 4,
               .dv = 3,
               .layout = BlockLayout::packed(offsets, {.block = {4}}),
               .mask = Mask::causal,
               .dtype = DType::f64},
              5);
  packed.forward();
  const std::int64_t stride = packed.problem.layout.mixing_size();
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    const std::int64_t first = offsets[s], count = offsets[s + 1] - first;
    if (count == 0) continue;
    Call alone({.dk = 4,
                .dv = 3,
                .layout = BlockLayout::sequence(count, {.block = {4}}),
                .mask = Mask::causal,
                .dtype = DType::f64},
               6);
    std::copy_n(packed.q.begin() + first * 4, count * 4, alone.q.begin());
    std::copy_n(packed.k.begin() + first * 4, count * 4, alone.k.begin());
    std::copy_n(packed.v.begin() + first * 3, count * 3, alone.v.begin());
    const std::int64_t blocks = alone.problem.layout.mixing_size();
    for (std::int64_t i = 0; i < blocks; ++i) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        alone.mixing[i * blocks + b] = packed.mixing[i * stride + b];
      }
    }
    alone.forward();
    EXPECT_TRUE(std::equal(alone.o.begin(), alone.o.end(), packed.o.begin() + first * 3));
  }
}

TEST(Reference, ALargerMixingMatrixServesAShorterSequence) {
  Call call(
      {.dk = 4, .dv = 3, .layout = BlockLayout::sequence(9, {.block = {4}}), .dtype = DType::f64},
      7);
  call.forward();
  std::vector<double> large(5 * 6, std::nan(""));
  for (int i = 0; i < 3; ++i) std::copy_n(call.mixing.begin() + i * 3, 3, large.begin() + i * 6);
  auto inputs = call.inputs();
  inputs.mixing = TensorView::of(large.data(), {5, 6});
  std::vector<double> o(call.o.size());
  forward(plan(call.problem), inputs, {.o = call.output_view(o)});
  EXPECT_EQ(o, call.o);
}

TEST(Reference, OneBlockAndOneTokenHaveDefinedResults) {
  Call call(
      {.dk = 2, .dv = 3, .layout = BlockLayout::sequence(1, {.block = {1}}), .dtype = DType::f64},
      8);
  EXPECT_LT(relative_error(call.forward(), call.v), kRounding) << "one token attends to itself";
}

TEST(Reference, AZeroDenominatorGivesZeroAndPassesNoGradient) {
  for (const auto normalizer : {Normalizer::exact, Normalizer::shared_position}) {
    Call call({.dk = 2,
               .dv = 2,
               .layout = BlockLayout::sequence(4, {.block = {2}}),
               .normalizer = normalizer,
               .feature_map = FeatureMap::relu,
               .eps = 0.0,
               .dtype = DType::f64},
              9);
    std::fill(call.q.begin(), call.q.end(), -1.0);
    call.backward();
    for (const auto* part : {&call.o, &call.d_q, &call.d_k, &call.d_v, &call.d_mixing}) {
      for (const double x : *part) EXPECT_EQ(x, 0.0);
    }
  }
}

TEST(Reference, AnEmptyBatchWritesOnlyAZeroMixingGradient) {
  Call call({.batch = 0,
             .dk = 2,
             .dv = 2,
             .layout = BlockLayout::sequence(4, {.block = {2}}),
             .dtype = DType::f64},
            10);
  call.backward();
  for (const double x : call.d_mixing) EXPECT_EQ(x, 0.0);
}

// A[s][t] of one head: the output for v = unit vectors and no normaliser.
std::vector<double> attention_matrix(const BlockLayout& layout, std::int64_t dk, double uniform) {
  Call call({.dk = dk,
             .dv = layout.tokens(),
             .layout = layout,
             .normalizer = Normalizer::none,
             .feature_map = FeatureMap::elu1,  // no token maps to almost zero
             .dtype = DType::f64},
            11);
  const std::int64_t n = layout.tokens();
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t d = 0; d < n; ++d) call.v[t * n + d] = t == d ? 1.0 : 0.0;
  }
  if (uniform > 0) std::fill(call.mixing.begin(), call.mixing.end(), uniform);
  return call.forward();
}

TEST(Reference, TheRankBoundsOfSpecSection5AreAttained) {
  const auto layout = BlockLayout::grid({8, 8}, {.block = {4, 4}});
  EXPECT_EQ(test::matrix_rank(attention_matrix(layout, 6, 0.25), 64), 6)
      << "uniform mixing collapses to linear attention: rank d";
  EXPECT_EQ(test::matrix_rank(attention_matrix(layout, 6, 0), 64), 24)
      << "sum over blocks of min(N_b, d) = 4 * 6";
  const auto many = BlockLayout::grid({8, 8}, {.block = {2, 2}});
  EXPECT_EQ(test::matrix_rank(attention_matrix(many, 6, 0), 64), 64)
      << "16 blocks of 4 tokens: full rank, where linear attention has 6";
}

}  // namespace
}  // namespace mhla
