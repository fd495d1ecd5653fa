// The oracle against examples worked out by hand, and its gradients against finite differences.
#include "mhla/verify/dense_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "mhla/verify/cases.h"
#include "mhla/verify/random.h"

namespace mhla::verify {
namespace {

Problem tiny(const BlockLayout& layout, Mask mask, Normalizer normalizer) {
  return {.dk = 1,
          .dv = 1,
          .layout = layout,
          .mask = mask,
          .normalizer = normalizer,
          .feature_map = FeatureMap::identity,
          .eps = 0.0,
          .dtype = DType::f64};
}

// Three tokens in blocks of two: blocks {0, 1} and {2}.
DenseInputs three_tokens() {
  DenseInputs in;
  in.q = {1, 2, 3};
  in.k = {2, 1, 4};
  in.v = {1, 10, 100};
  in.mixing = {1, 0.5, 0.25, 2};
  in.mixing_rows = in.mixing_cols = 2;
  return in;
}

const BlockLayout& three() {
  static const BlockLayout layout = BlockLayout::sequence(3, {.block = {2}});
  return layout;
}

TEST(TokenPlaces, FollowFromDivisionInARaggedPicture) {
  // 3 rows of 5 in blocks of 2x2: six blocks, the last column one wide, the last row one high.
  const auto places = token_places(BlockLayout::grid({3, 5}, {.block = {2, 2}})).at(0);
  ASSERT_EQ(places.size(), 15u);
  EXPECT_EQ(places[4].block, 2);  // row 0, column 4
  EXPECT_EQ(places[4].position, 0);
  EXPECT_EQ(places[9].block, 2);  // row 1, column 4: second token of a block one wide
  EXPECT_EQ(places[9].position, 1);
  EXPECT_EQ(places[6].block, 0);  // row 1, column 1
  EXPECT_EQ(places[6].position, 3);
  EXPECT_EQ(places[13].block, 4);  // row 2, column 3
  EXPECT_EQ(places[13].position, 1);
}

TEST(TokenPlaces, CutByNumberOfBlocksAtTheFloorOfEqualParts) {
  // 7 tokens in 3 blocks: cut at 2 and 4.
  const auto places = token_places(BlockLayout::sequence(7, {.blocks = {3}})).at(0);
  const std::int64_t expected[] = {0, 0, 1, 1, 2, 2, 2};
  for (std::size_t t = 0; t < 7; ++t) EXPECT_EQ(places[t].block, expected[t]) << "token " << t;
}

TEST(TokenPlaces, AgreeWithTheLayoutInEveryCase) {
  for (const Case& c : cases()) {
    for (const BlockLayout* layout : {&c.problem.layout, &c.problem.keys()}) {
      std::int64_t token = 0;
      const auto all = token_places(*layout);
      for (std::size_t s = 0; s < all.size(); ++s) {
        for (const TokenPlace& place : all[s]) {
          const BlockPosition found = layout->locate(token++);
          const Block& block = layout->blocks()[static_cast<std::size_t>(found.block)];
          ASSERT_EQ(block.sequence, static_cast<std::int64_t>(s)) << c.name;
          ASSERT_EQ(block.index, place.block) << c.name;
          ASSERT_EQ(found.position, place.position) << c.name;
        }
      }
      ASSERT_EQ(token, layout->tokens());
    }
  }
}

TEST(DenseOracle, WithoutNormalizerIsTheWeightedSum) {
  const auto o = dense_oracle(tiny(three(), Mask::none, Normalizer::none), three_tokens()).value.o;
  // Row 0: 1*(1*2*1 + 1*1*10) + 0.5*(1*4*100).
  EXPECT_DOUBLE_EQ(o[0], 12 + 200);
  EXPECT_DOUBLE_EQ(o[1], 2 * (12 + 200));
  EXPECT_DOUBLE_EQ(o[2], 3 * (0.25 * 12 + 2 * 400));
}

TEST(DenseOracle, ExactNormalizerDividesByTheSumOfScores) {
  const auto o = dense_oracle(tiny(three(), Mask::none, Normalizer::exact), three_tokens()).value.o;
  EXPECT_DOUBLE_EQ(o[0], 212.0 / (1 * 3 + 0.5 * 4));
  EXPECT_DOUBLE_EQ(o[2], (0.25 * 12 + 800) / (0.25 * 3 + 2 * 4));
}

TEST(DenseOracle, SharedPositionMixesEachBlocksOwnQuery) {
  const auto o =
      dense_oracle(tiny(three(), Mask::none, Normalizer::shared_position), three_tokens()).value.o;
  // Position 0 exists in both blocks: q of tokens 0 and 2, z of 3 and 4.
  EXPECT_DOUBLE_EQ(o[0], 212.0 / (1 * (1 * 3) + 0.5 * (3 * 4)));
  // Position 1 exists in block 0 only.
  EXPECT_DOUBLE_EQ(o[1], 424.0 / (1 * (2 * 3)));
  EXPECT_DOUBLE_EQ(o[2], 3 * 803.0 / (0.25 * (1 * 3) + 2 * (3 * 4)));
}

TEST(DenseOracle, CausalMaskHidesLaterTokens) {
  const auto o = dense_oracle(tiny(three(), Mask::causal, Normalizer::none), three_tokens())
                     .value.o;
  EXPECT_DOUBLE_EQ(o[0], 1 * 2 * 1);
  EXPECT_DOUBLE_EQ(o[1], 2 * (2 * 1 + 1 * 10));
  EXPECT_DOUBLE_EQ(o[2], 3 * (0.25 * 12 + 2 * 400));
}

TEST(DenseOracle, BlockCausalMaskHidesLaterBlocksOnly) {
  const auto o = dense_oracle(tiny(three(), Mask::block_causal, Normalizer::none), three_tokens())
                     .value.o;
  EXPECT_DOUBLE_EQ(o[0], 12);
  EXPECT_DOUBLE_EQ(o[1], 24);
}

TEST(DenseOracle, CausalSharedPositionCutsTheOwnBlockAtThePosition) {
  const auto o = dense_oracle(tiny(three(), Mask::causal, Normalizer::shared_position),
                              three_tokens())
                     .value.o;
  EXPECT_DOUBLE_EQ(o[0], 2.0 / (1 * 1 * 2));
  // Token 2: block 0 in full with the query of token 0, its own block up to itself.
  EXPECT_DOUBLE_EQ(o[2], 3 * 803.0 / (0.25 * (1 * 3) + 2 * (3 * 4)));
}

TEST(DenseOracle, VanishingDenominatorGivesZeroAndNoGradient) {
  DenseInputs in = three_tokens();
  in.mixing = {0, 0, 0.25, 2};
  in.d_o = {1, 1, 0};
  const DenseTensors r = dense_oracle(tiny(three(), Mask::none, Normalizer::exact), in).value;
  EXPECT_EQ(r.o[0], 0);
  for (const double x : r.d_v) EXPECT_EQ(x, 0);
  for (const double x : r.d_mixing) EXPECT_EQ(x, 0);
}

TEST(DenseOracle, PackedSequencesDoNotSeeEachOther) {
  const Problem p = tiny(BlockLayout::packed({0, 1, 1, 3}, {.block = {2}}), Mask::none,
                         Normalizer::none);
  DenseInputs in = three_tokens();
  in.mixing = {1};
  in.mixing_rows = in.mixing_cols = 1;
  const auto o = dense_oracle(p, in).value.o;
  EXPECT_DOUBLE_EQ(o[0], 1 * 2 * 1);
  EXPECT_DOUBLE_EQ(o[1], 2 * (1 * 10 + 4 * 100));
}

TEST(DenseOracle, FeatureMapsHaveTheirDocumentedValues) {
  const auto one = BlockLayout::sequence(1, {.block = {1}});
  DenseInputs in;
  in.q = {-1};
  in.k = {2};
  in.v = {1};
  in.mixing = {1};
  in.mixing_rows = in.mixing_cols = 1;
  Problem p = tiny(one, Mask::none, Normalizer::none);
  const auto value = [&](FeatureMap map) {
    p.feature_map = map;
    return dense_oracle(p, in).value.o[0];
  };
  EXPECT_DOUBLE_EQ(value(FeatureMap::identity), -2);
  EXPECT_DOUBLE_EQ(value(FeatureMap::relu), 0);
  EXPECT_DOUBLE_EQ(value(FeatureMap::relu_eps), 1e-6 * (2 + 1e-6));
  EXPECT_DOUBLE_EQ(value(FeatureMap::elu1), std::exp(-1) * 3);
}

// <d_o, o> as a function of one input tensor, differentiated by central differences.
void expect_gradient(const Problem& p, DenseInputs in, std::vector<double> DenseInputs::* input,
                     const std::vector<double>& gradient, const std::string& label) {
  const auto loss = [&] {
    DenseInputs forward = in;
    forward.d_o.clear();
    const auto o = dense_oracle(p, forward).value.o;
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * in.d_o[i];
    return sum;
  };
  ASSERT_EQ(gradient.size(), (in.*input).size()) << label;
  double largest = 1;
  for (const double g : gradient) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    constexpr double kStep = 1e-6;
    double& x = (in.*input)[i];
    const double kept = x;
    x = kept + kStep;
    const double above = loss();
    x = kept - kStep;
    const double below = loss();
    x = kept;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-6 * largest)
        << label << " element " << i;
  }
}

TEST(DenseOracle, GradientsAreThoseOfTheFormulaInEveryForm) {
  Random random(7);
  for (const Mask mask : {Mask::none, Mask::causal, Mask::block_causal}) {
    for (const Normalizer normalizer :
         {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
      for (const FeatureMap map : {FeatureMap::elu1, FeatureMap::relu, FeatureMap::identity}) {
        const bool separate = normalizer != Normalizer::none && map != FeatureMap::relu;
        Case c{.name = {},
               .form = {},
               .problem = {.batch = 1,
                           .heads = 2,
                           .dk = 2,
                           .dv = 2,
                           .layout = BlockLayout::grid({2, 3}, {.block = {2, 2}}),
                           .mask = mask,
                           .normalizer = normalizer,
                           .feature_map = map,
                           .scale = 0.7,
                           .eps = 0.05,
                           .separate_denominator = separate,
                           .mixing_per_head = map == FeatureMap::elu1,
                           .dtype = DType::f64},
               .seed = random.bits(),
               .mixing_dtype = DType::f64};
        const DenseInputs in = make_inputs(c);
        const DenseTensors r = dense_oracle(c.problem, in).value;
        const std::string form = std::string(name(mask)) + "/" + name(normalizer) + "/" +
                                 name(map) + " ";
        expect_gradient(c.problem, in, &DenseInputs::q, r.d_q, form + "d_q");
        expect_gradient(c.problem, in, &DenseInputs::k, r.d_k, form + "d_k");
        expect_gradient(c.problem, in, &DenseInputs::v, r.d_v, form + "d_v");
        expect_gradient(c.problem, in, &DenseInputs::mixing, r.d_mixing, form + "d_mixing");
        if (!separate) continue;
        expect_gradient(c.problem, in, &DenseInputs::q_den, r.d_q_den, form + "d_q_den");
        expect_gradient(c.problem, in, &DenseInputs::k_den, r.d_k_den, form + "d_k_den");
      }
    }
  }
}

TEST(DenseOracle, MassBoundsTheErrorOfANaiveComputation) {
  // The naive bf16 program is one computation in low precision: its error fits in its own mass.
  for (const Case& c : cases()) {
    if (c.heavy || c.problem.dtype != DType::bf16) continue;
    const DenseInputs in = make_inputs(c);
    const DenseAnswer truth = dense_oracle(c.problem, in);
    const DenseTensors naive = dense_naive(c.problem, in, DType::bf16);
    for (std::size_t i = 0; i < naive.o.size(); ++i) {
      const double bound = 4 * 0x1p-8 * truth.mass.o[i] + 1e-30;
      // First order only: where the bound exceeds the value itself it says nothing.
      if (bound > 0.1 * std::abs(truth.value.o[i])) continue;
      ASSERT_LE(std::abs(naive.o[i] - truth.value.o[i]), bound) << c.name << " element " << i;
    }
  }
}

}  // namespace
}  // namespace mhla::verify
