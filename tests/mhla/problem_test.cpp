// Problems: text form, defaults, and the combinations that have no meaning.
#include "mhla/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/tensors.h"

namespace mhla {
namespace {

using test::error_of;

Problem small() { return {.layout = BlockLayout::sequence(10, {.block = {4}})}; }

TEST(Problem, TextReadsBackToTheSameProblem) {
  Problem problem = small();
  problem.batch = 3;
  problem.dk = 5;
  problem.dv = 7;
  problem.layout_k = BlockLayout::packed_grids({{3, 4}, {6, 9}}, {.blocks = {3, 2}});
  problem.layout = BlockLayout::packed({0, 4, 9}, {.block = {2}});
  problem.feature_map = FeatureMap::elu1;
  problem.scale = 1.0 / 3.0;
  problem.eps = 1e-7;
  problem.separate_denominator = true;
  problem.mixing_per_head = true;
  problem.dtype = DType::bf16;
  problem.device = Device::cuda(2);
  EXPECT_EQ(parse_problem(problem.to_string()), problem) << problem.to_string();
}

TEST(Problem, TextFollowsTheVocabularyOfTheCommandLine) {
  const Problem p = parse_problem("grid=32x32 block=8x8 heads=6 dk=48 mask=block_causal");
  EXPECT_EQ(p.layout, BlockLayout::grid({32, 32}, {.block = {8, 8}}));
  EXPECT_EQ(p.heads, 6);
  EXPECT_EQ(p.dv, 48) << "dv follows dk when it is left out";
  EXPECT_EQ(p.mask, Mask::block_causal);
  EXPECT_EQ(p.normalizer, Normalizer::exact);
}

TEST(Problem, EpsDefaultsByNormalizer) {
  Problem problem = small();
  EXPECT_EQ(problem.denominator_eps(), 0.0);
  problem.normalizer = Normalizer::shared_position;
  EXPECT_EQ(problem.denominator_eps(), 1e-6);
  problem.eps = 0.5;
  EXPECT_EQ(problem.denominator_eps(), 0.5);
}

TEST(Problem, TypingErrorsNameTheNearestKey) {
  EXPECT_NE(
      error_of([] { parse_problem("sequence=8 block=4 haeds=2"); }).find("did you mean 'heads'"),
      std::string::npos);
}

TEST(Problem, BadTextIsRefusedWithTheWord) {
  const auto message = [](const char* text) { return error_of([&] { parse_problem(text); }); };
  EXPECT_NE(message("").find("either grid or sequence"), std::string::npos);
  EXPECT_NE(message("sequence=8 grid=2x4 block=2").find("got both"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 dk").find("expected key=value, got 'dk'"),
            std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 dk=").find("got nothing"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 dk=4 dk=4").find("given twice"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 dk=4.5").find("'4.5'"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 scale=wide").find("expected a number"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 mask=diagonal").find("none, causal, block_causal"),
            std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 dtype=int8").find("'int8'"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 device=tpu").find("cpu, cuda or cuda:N"),
            std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 mixing_per_head=maybe").find("true or false"),
            std::string::npos);
  EXPECT_NE(message("sequence=8+-1 block=4").find("lengths must be >= 0"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 sequence_k=6").find("either block_k"), std::string::npos);
  EXPECT_NE(message("sequence=8 block=4 sequence_k=6 block_k=x").find("block_k: expected a whole"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_problem(std::string(1 << 23, 'a')); }).find("at most"),
            std::string::npos);
}

TEST(Problem, NumbersOutOfRangeAreRefused) {
  const auto message = [](auto change) {
    Problem problem = small();
    change(problem);
    return error_of([&] { check(problem); });
  };
  EXPECT_NE(message([](Problem& p) { p.batch = -1; }).find("batch"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.heads = 0; }).find("heads"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.dk = 0; }).find("dk"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.dv = -4; }).find("dv"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.scale = std::nan(""); }).find("scale"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.eps = -1.0; }).find("eps"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.eps = std::nan(""); }).find("eps"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.scale = 1e39; }).find("range of f32"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.scale = -1e-39; }).find("range of f32"), std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.eps = 1e300; }).find("range of f32"), std::string::npos);
  EXPECT_EQ(message([](Problem& p) {
              p.scale = 1e39;
              p.eps = 1e300;
              p.dtype = DType::f64;
            }),
            "");
  EXPECT_EQ(message([](Problem& p) { p.scale = 0; }), "") << "zero is in every range";
  EXPECT_NE(message([](Problem& p) { p.device = Device::cuda(-1); }).find("device"),
            std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.batch = std::int64_t{1} << 62; }).find("overflow"),
            std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.dk = p.dv = std::int64_t{1} << 40; }).find("overflow"),
            std::string::npos);
  EXPECT_NE(message([](Problem& p) { p.dk = p.dv = std::int64_t{1} << 29; }).find("overflow"),
            std::string::npos)
      << "bytes of all summaries";
  EXPECT_NE(message([](Problem& p) { p.mask = static_cast<Mask>(9); }).find("unknown value 9"),
            std::string::npos);
  EXPECT_EQ(message([](Problem& p) { p.batch = 0; }), "") << "an empty batch is no error";
}

TEST(Problem, CombinationsWithoutAMeaningAreRefusedWithTheReason) {
  const auto message = [](auto change) {
    Problem problem = small();
    change(problem);
    return error_of([&] { check(problem); });
  };
  const auto other = BlockLayout::sequence(12, {.block = {4}});
  EXPECT_NE(message([&](Problem& p) {
              p.layout_k = other;
              p.mask = Mask::causal;
            }).find("use mask none"),
            std::string::npos);
  EXPECT_NE(message([&](Problem& p) {
              p.layout_k = other;
              p.normalizer = Normalizer::shared_position;
            }).find("one layout for q and k"),
            std::string::npos);
  EXPECT_NE(message([&](Problem& p) {
              p.layout_k = BlockLayout::packed({0, 4, 8}, {.block = {4}});
            }).find("packed sequences"),
            std::string::npos);
  EXPECT_NE(message([](Problem& p) {
              p.separate_denominator = true;
              p.normalizer = Normalizer::none;
            }).find("no denominator"),
            std::string::npos);
  EXPECT_EQ(message([](Problem& p) {
              p.layout_k = p.layout;
              p.mask = Mask::causal;
            }),
            "")
      << "an equal layout for the keys is self-attention";
}

}  // namespace
}  // namespace mhla
