// The CPU kernels against the f64 reference, on every instruction set this machine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpu_case.h"
#include "mhla/cpu/kernels.h"

namespace mhla::test {
namespace {

using L = BlockLayout;

// Rounding errors of independent sums add like their square root; inputs of unit size. The factor
// leaves room for the quotient and for the feature map's own exponential.
double tolerance(const Problem& p) {
  const double terms = static_cast<double>(p.keys().max_block_tokens() + p.keys().mixing_size() +
                                           p.dk + p.dv);
  const double accumulated = 8 * 0x1p-24 * std::sqrt(terms);
  if (p.dtype == DType::bf16) return accumulated + 4 * 0x1p-9;
  if (p.dtype == DType::f16) return accumulated + 4 * 0x1p-12;
  return accumulated;
}

std::vector<const char*> forms(const Problem& p) {
  if (p.separate_denominator) return {"cpu.linear"};
  return {"cpu.linear", "cpu.dense"};
}

class EachTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { cpu::choose_target_for_test(GetParam()); }
  void TearDown() override { cpu::choose_target_for_test(""); }

  void expect_agreement(const Problem& p, std::uint64_t seed, int threads = 1) {
    CpuCase c(p, seed);
    c.compute_truth();
    for (const char* form : forms(p)) {
      const auto got = c.run({.implementation = form, .threads = threads});
      for (const auto& [name, values] : got) {
        EXPECT_LE(relative_error(values, c.expected(name)), tolerance(p))
            << name << " of " << p.to_string() << " by " << form << " threads " << threads;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Machine, EachTarget, testing::ValuesIn(cpu::runnable_targets()),
                         [](const auto& name) { return name.param; });

constexpr Mask kMasks[] = {Mask::none, Mask::causal, Mask::block_causal};
constexpr Normalizer kNormalizers[] = {Normalizer::exact, Normalizer::shared_position,
                                       Normalizer::none};
constexpr FeatureMap kMaps[] = {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1,
                                FeatureMap::identity};

TEST_P(EachTarget, AgreesAtTheEdgesOfTiles) {
  std::uint64_t seed = 1;
  for (const std::int64_t d : {1, 7, 8, 15, 16, 17, 31, 32, 33}) {
    for (const std::int64_t n : {1, 7, 16, 17, 33}) {
      const Mask mask = kMasks[seed % 3];
      expect_agreement(
          {.heads = 2,
           .dk = d,
           .dv = 1 + (d * 5 + n) % 37,
           .layout = L::sequence(5 * n + n / 2, {.block = {n}}),
           .mask = mask,
           // One feature cancels in the quotient: its gradient would be nothing but rounding.
           .normalizer = d == 1 ? Normalizer::none : Normalizer::exact},
          seed);
      ++seed;
    }
  }
}

TEST_P(EachTarget, AgreesForEveryMaskNormalizerAndMap) {
  std::uint64_t seed = 100;
  const std::vector<L> layouts = {
      L::sequence(43, {.block = {8}}), L::grid({9, 11}, {.block = {4, 4}}),
      L::grid({3, 5, 7}, {.block = {2, 2, 3}}), L::packed({0, 5, 5, 30, 31}, {.block = {4}})};
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : kNormalizers) {
      for (const FeatureMap map : kMaps) {
        for (const bool separate : {false, true}) {
          if (separate && normalizer == Normalizer::none) continue;
          // Denominators of the identity map come arbitrarily close to zero.
          if (map == FeatureMap::identity && normalizer != Normalizer::none && !separate) continue;
          Problem p{.batch = 2,
                    .heads = 2,
                    .dk = 9,
                    .dv = 20,
                    .layout = layouts[seed % 4],
                    .mask = mask,
                    .normalizer = normalizer,
                    .feature_map = map,
                    .scale = 0.5,
                    .separate_denominator = separate,
                    .mixing_per_head = seed % 3 == 0};
          if (normalizer != Normalizer::none) p.eps = 0.3;
          expect_agreement(p, seed++);
        }
      }
    }
  }
}

TEST_P(EachTarget, AgreesForCrossAttention) {
  expect_agreement({.heads = 2,
                    .dk = 16,
                    .dv = 24,
                    .layout = L::sequence(29, {.block = {8}}),
                    .layout_k = L::grid({6, 7}, {.block = {4, 4}})},
                   200);
  expect_agreement({.dk = 5,
                    .dv = 3,
                    .layout = L::packed({0, 5, 9, 9, 14}, {.block = {4}}),
                    .layout_k = L::packed({0, 3, 3, 8, 17}, {.block = {3}})},
                   201);
}

TEST_P(EachTarget, AgreesForBlocksLongerThanAChunk) {
  std::uint64_t seed = 300;
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : kNormalizers) {
      for (const bool separate : {false, true}) {
        if (separate && normalizer == Normalizer::none) continue;
        expect_agreement({.dk = 12,
                          .dv = 17,
                          .layout = L::sequence(1301, {.block = {600}}),
                          .mask = mask,
                          .normalizer = normalizer,
                          .eps = 0.1,
                          .separate_denominator = separate},
                         seed++);
      }
    }
  }
}

TEST_P(EachTarget, AgreesIn16BitForLongBlocksAndWideHeads) {
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : {Normalizer::exact, Normalizer::none}) {
      expect_agreement({.dk = 13,
                        .dv = 31,
                        .layout = L::sequence(1101, {.block = {551}}),
                        .mask = mask,
                        .normalizer = normalizer,
                        .dtype = DType::bf16},
                       350);
      expect_agreement({.dk = 515,
                        .dv = 300,
                        .layout = L::sequence(23, {.block = {7}}),
                        .mask = mask,
                        .normalizer = normalizer,
                        .dtype = DType::bf16},
                       351);
    }
  }
}

TEST_P(EachTarget, AgreesForHeadsWiderThanAChunk) {
  for (const Mask mask : kMasks) {
    expect_agreement(
        {.dk = 300, .dv = 530, .layout = L::sequence(20, {.block = {6}}), .mask = mask}, 400);
    expect_agreement({.dk = 513, .dv = 30, .layout = L::sequence(20, {.block = {6}}), .mask = mask},
                     401);
  }
}

TEST_P(EachTarget, AgreesIn16Bit) {
  std::uint64_t seed = 500;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Mask mask : kMasks) {
      for (const Normalizer normalizer : kNormalizers) {
        expect_agreement({.heads = 2,
                          .dk = 33,
                          .dv = 40,
                          .layout = L::grid({12, 20}, {.block = {5, 6}}),
                          .mask = mask,
                          .normalizer = normalizer,
                          .eps = 0.1,
                          .dtype = dtype},
                         seed++);
      }
    }
  }
}

// Odd rows, columns and blocks of summaries whose rows and blocks are paired.
TEST_P(EachTarget, AgreesAtTheEdgesOfPairs) {
  std::uint64_t seed = 540;
  for (const std::int64_t d : {2, 15, 31, 33, 64, 79}) {
    for (const std::int64_t blocks : {1, 2, 5, 16}) {
      expect_agreement({.heads = 2,
                        .dk = d,
                        // Enough entries for pairs, see pairs_up().
                        .dv = std::max((256 + d - 1) / d, 1 + (d * 7 + blocks) % 97),
                        .layout = L::sequence(9 * blocks - 2, {.block = {9}}),
                        .mask = kMasks[seed / 2 % 3],
                        .normalizer = seed % 2 == 0 ? Normalizer::none : Normalizer::exact,
                        .feature_map = kMaps[seed % 3],
                        .dtype = DType::bf16},
                       seed);
      ++seed;
    }
  }
}

// Summaries of few entries gain nothing from pairs and average few roundings: bf16 is computed in
// f32 there, as on a machine without dot products.
TEST(Cpu, FewEntriesAreMultipliedInF32) {
  const std::vector<std::string> targets = cpu::runnable_targets();
  const auto runs = [&](const char* target) {
    return std::find(targets.begin(), targets.end(), target) != targets.end();
  };
  if (!runs("AVX3_BF16") || !runs("AVX3")) GTEST_SKIP() << "no dot products of bf16";
  for (const std::int64_t dv : {16, 17}) {
    const Problem p{.dk = 15,
                    .dv = dv,
                    .layout = L::sequence(30, {.block = {9}}),
                    .mask = Mask::causal,
                    .normalizer = Normalizer::none,
                    .dtype = DType::bf16};
    CpuCase c(p, 560);
    cpu::choose_target_for_test("AVX3_BF16");
    const auto paired = c.run({.implementation = "cpu.linear"});
    cpu::choose_target_for_test("AVX3");
    const auto plain = c.run({.implementation = "cpu.linear"});
    cpu::choose_target_for_test("");
    EXPECT_EQ(paired == plain, p.dk * dv < 256) << dv;
  }
}

// Numerator and denominator round the same values, so that equal values come out as they are.
TEST_P(EachTarget, ConstantsArePreservedIn16Bit) {
  for (const Mask mask : {Mask::none, Mask::block_causal}) {
    const Problem p{.dk = 40,
                    .dv = 35,
                    .layout = L::grid({12, 20}, {.block = {5, 6}}),
                    .mask = mask,
                    .dtype = DType::bf16};
    CpuCase c(p, 570);
    for (double& x : c.truth().v) x = 1;
    for (const char* form : forms(p)) {
      const auto got = c.run({.implementation = form});
      for (const double x : got.at("o")) ASSERT_EQ(x, 1) << form;
    }
  }
}

TEST_P(EachTarget, NotANumberStaysOneIn16Bit) {
  for (const FeatureMap map : {FeatureMap::relu, FeatureMap::relu_eps, FeatureMap::identity}) {
    for (const double sign : {1.0, -1.0}) {
      const Problem p{.dk = 40,
                      .dv = 35,
                      .layout = L::sequence(24, {.block = {8}}),
                      .normalizer = Normalizer::none,
                      .feature_map = map,
                      .dtype = DType::bf16};
      CpuCase c(p, 580);
      c.truth().k[3] = std::copysign(NAN, sign);
      const auto got = c.run({.implementation = "cpu.linear"});
      EXPECT_TRUE(std::isnan(got.at("o")[0])) << name(map) << " " << sign;
    }
  }
}

TEST_P(EachTarget, DoesNotDependOnTheNumberOfThreads) {
  std::vector<Problem> problems;
  for (const Mask mask : kMasks) {
    for (const std::int64_t batch : {1, 4}) {
      for (const Normalizer normalizer : kNormalizers) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          problems.push_back({.batch = batch,
                              .dk = 24,
                              .dv = 40,
                              .layout = L::grid({20, 21}, {.block = {5, 4}}),
                              .mask = mask,
                              .normalizer = normalizer,
                              .eps = normalizer == Normalizer::none ? 0 : 0.1,
                              .dtype = dtype});
        }
      }
    }
  }
  for (const Problem& p : problems) {
    CpuCase c(p, 600);
    for (const char* form : forms(p)) {
      const auto one = c.run({.implementation = form, .threads = 1});
      for (const int threads : {1, 2, 3}) {
        const auto again = c.run({.implementation = form, .threads = threads});
        for (const auto& [name, values] : one) {
          EXPECT_EQ(values, again.at(name)) << name << " of " << p.to_string() << " by " << form
                                            << " with " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(EachTarget, SharesLargeHeadsAmongThreads) {
  for (const int threads : {2, 3}) {
    expect_agreement({.dk = 64, .dv = 64, .layout = L::sequence(2048, {.block = {32}})}, 700,
                     threads);
  }
}

// Sides of the crossover that measurements leave no doubt about (docs/kernels/cpu.md).
TEST(Cpu, TheCheaperFormIsChosen) {
  const auto chosen = [](std::int64_t tokens, std::int64_t block, std::int64_t d) {
    return plan({.heads = 4, .dk = d, .dv = d, .layout = L::sequence(tokens, {.block = {block}})})
        .implementation();
  };
  EXPECT_EQ(chosen(64, 4, 64), "cpu.dense");
  EXPECT_EQ(chosen(256, 4, 64), "cpu.dense");
  EXPECT_EQ(chosen(256, 16, 64), "cpu.linear");
  EXPECT_EQ(chosen(1024, 64, 64), "cpu.linear");
}

TEST(Cpu, TheDenseFormSaysWhatItRefuses) {
  const auto reason = [](const Problem& p) {
    return error_of([&] { plan(p, {.implementation = "cpu.dense"}); });
  };
  Problem p{.layout = L::sequence(9000, {.block = {100}})};
  EXPECT_NE(reason(p).find("up to 8192 keys"), std::string::npos);
  p.layout = L::sequence(64, {.block = {16}}), p.separate_denominator = true;
  EXPECT_NE(reason(p).find("separate denominators"), std::string::npos);
}

TEST(Cpu, IsChosenWhereItServes) {
  const Problem p{.layout = L::sequence(256, {.block = {16}})};
  EXPECT_EQ(plan(p).implementation(), "cpu.linear");
  Problem wide = p;
  wide.dtype = DType::f64;
  EXPECT_EQ(plan(wide).implementation(), "reference");
}

TEST(Cpu, RefusesATargetTheMachineLacks) {
  EXPECT_NE(error_of([] { cpu::choose_target_for_test("AVX9"); }).find("AVX9"), std::string::npos);
}

TEST(Cpu, AVanishingDenominatorGivesZero) {
  const Problem p{.dk = 8, .dv = 8, .layout = L::sequence(12, {.block = {4}})};
  CpuCase c(p, 800);
  for (std::size_t i = 3; i < 6; ++i) c.truth().mixing[i] = 0;
  c.compute_truth();
  for (const char* form : forms(p)) {
    const auto got = c.run({.implementation = form});
    for (std::size_t i = 4 * 8; i < 8 * 8; ++i) EXPECT_EQ(got.at("o")[i], 0) << form;
    for (const auto& [name, values] : got) {
      EXPECT_LE(relative_error(values, c.expected(name)), tolerance(p)) << name << " by " << form;
    }
  }
}

}  // namespace
}  // namespace mhla::test
