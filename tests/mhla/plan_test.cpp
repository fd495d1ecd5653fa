// Plans: what they cost, what they say, which options they refuse.
#include "mhla/plan.h"

#include <gtest/gtest.h>

#include "support/tensors.h"

namespace mhla {
namespace {

using test::error_of;

Problem small() {
  return {.batch = 2,
          .heads = 3,
          .dk = 16,
          .dv = 24,
          .layout = BlockLayout::sequence(60, {.block = {12}}),
          .normalizer = Normalizer::none};
}

TEST(Plan, CountsTheMultiplicationsOfSpecSection12) {
  const Cost cost = plan(small()).cost();
  // Summaries and read-out, 2 N dk dv, and the mixture, M^2 dk dv; a multiply-add is two.
  EXPECT_EQ(cost.forward_flops, 2.0 * (2 * 3) * (2 * 60 + 5 * 5) * 16 * 24);
  EXPECT_EQ(cost.forward_bytes, 4.0 * (2 * 3) * 60 * (16 + 16 + 24 + 24));
  EXPECT_GT(cost.backward_flops, 2 * cost.forward_flops);
}

TEST(Plan, CountsOnlyTheWeightsThatAMaskLeaves) {
  Problem problem = small();
  problem.mask = Mask::block_causal;
  const double pairs = 5 * 6 / 2;
  EXPECT_EQ(plan(problem).cost().forward_flops, 2.0 * (2 * 3) * (2 * 60 + pairs) * 16 * 24);
}

TEST(Plan, SaysWhatWasChosenAndWhyNotTheOthers) {
  Problem problem = small();
  problem.dtype = DType::f64;
  const Plan made = plan(problem);
  EXPECT_EQ(made.implementation(), "reference") << "nothing else computes in f64";
  const std::string text = made.explain();
  EXPECT_NE(text.find("* reference: serves this problem"), std::string::npos) << text;
  EXPECT_NE(text.find("60 tokens in 5 blocks of at most 12"), std::string::npos) << text;
  std::size_t chosen = 0;
  for (const Candidate& candidate : made.candidates()) {
    chosen += candidate.chosen;
    EXPECT_FALSE(candidate.reason.empty()) << candidate.implementation;
    EXPECT_NE(text.find(candidate.implementation + ": " + candidate.reason), std::string::npos);
  }
  EXPECT_EQ(chosen, 1U);
  EXPECT_EQ(made.candidates().size(), implementations().size());
}

TEST(Plan, OnADeviceWhoseBackendIsAbsentSaysHowToGetIt) {
  for (const auto& name : implementations()) {
    if (name.starts_with("cuda.")) GTEST_SKIP() << "this build has the backend";
  }
  Problem problem = small();
  problem.device = Device::cuda(0);
  const std::string error = error_of([&] { plan(problem); });
  EXPECT_NE(error.find("MHLA_CUDA=ON"), std::string::npos) << error;
}

TEST(Plan, RefusesThreadsThatNoMachineHas) {
  EXPECT_NE(error_of([] { plan(small(), {.threads = -1}); }).find("got -1"), std::string::npos);
  EXPECT_NE(error_of([] { plan(small(), {.threads = 1 << 30}); }).find("0 to 1024"),
            std::string::npos);
}

TEST(Plan, WhatNothingServesIsUnsupportedWithEveryReason) {
  Problem problem = small();
  problem.device = Device::cuda(9999);
  try {
    plan(problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    for (const std::string& name : implementations()) {
      EXPECT_NE(std::string(error.what()).find(name + ": "), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace mhla
