// Streams on every instruction set that the machine runs, with one thread and with several.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/cpu/kernels.h"
#include "mhla/state.h"
#include "state_fixture.h"

namespace mhla::test {
namespace {

class EachTargetStreams : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { cpu::choose_target_for_test(GetParam()); }
  void TearDown() override { cpu::choose_target_for_test(""); }
};

INSTANTIATE_TEST_SUITE_P(Machine, EachTargetStreams, testing::ValuesIn(cpu::runnable_targets()),
                         [](const auto& name) { return name.param; });

template <typename E>
void expect_agreement(Problem p, std::int64_t prompt, std::int64_t tokens, unsigned seed) {
  p.dtype = dtype_of<E>();
  SCOPED_TRACE(p.to_string());
  const StreamData<E> data(p, tokens, seed);
  const std::int64_t block = p.layout.cut().block[0];
  const auto mixing = random_mixing(0, tokens / block + 1, seed + 1);
  State state(p, mixing);
  auto o = poisoned<E>(data.v.size());
  state.prefill(data.inputs(0, prompt), data.piece(o, p.dv, 0, prompt));
  step_through(state, data, prompt, tokens, o);
  EXPECT_LE(worst(o, dense_oracle(p, data, weights_of(mixing))), 1.0);
}

TEST_P(EachTargetStreams, AgreeWithTheDefinitionAtTheEdgesOfVectorsAndTiles) {
  for (const std::int64_t dk : {1, 15, 17, 64}) {
    for (const std::int64_t dv : {1, 16, 31, 48, 130, 257}) {
      const Problem p{.dk = dk,
                      .dv = dv,
                      .layout = BlockLayout::sequence(9, {.block = {9}}),
                      .mask = Mask::causal,
                      .feature_map = dv % 2 == 0 ? FeatureMap::relu_eps : FeatureMap::elu1};
      expect_agreement<float>(p, 20, 50, static_cast<unsigned>(dk * 1000 + dv));
    }
  }
}

TEST_P(EachTargetStreams, AgreeInEveryStorageType) {
  const Problem p{.batch = 2,
                  .heads = 2,
                  .dk = 40,
                  .dv = 72,
                  .layout = BlockLayout::sequence(6, {.block = {6}}),
                  .mask = Mask::causal,
                  .scale = 0.25};
  expect_agreement<float>(p, 31, 120, 1);
  expect_agreement<BFloat16>(p, 31, 120, 2);
  expect_agreement<Float16>(p, 31, 120, 3);
}

// Wide enough that a call is spread over threads, where there are several.
TEST_P(EachTargetStreams, AgreeWhenLanesAreSpreadOverThreads) {
  const Problem p{.batch = 8,
                  .heads = 4,
                  .dk = 128,
                  .dv = 256,
                  .layout = BlockLayout::sequence(8, {.block = {8}}),
                  .mask = Mask::causal,
                  .normalizer = Normalizer::none};
  expect_agreement<float>(p, 20, 36, 4);
}

// From the 96th closed block on mixtures are prepared for 32 rows at once. They have the bits of a
// chain of multiply-adds from the first block on, which is what a state does that was just loaded
// and has prepared nothing.
TEST_P(EachTargetStreams, WideGroupsHaveTheBitsOfThePlainOrder) {
  // The last rows of the mixing fill neither a wide group nor a tile, the columns no whole number
  // of slabs.
  constexpr std::int64_t kBlock = 2, kBlocks = 205, kTokens = kBlock * kBlocks;
  for (const bool per_head : {false, true}) {
    Problem p{.heads = 2,
              .dk = 20,
              .dv = 20,
              .layout = BlockLayout::sequence(kBlock, {.block = {kBlock}}),
              .mask = Mask::causal,
              .scale = 0.5};
    p.mixing_per_head = per_head;
    const std::int64_t per_token = p.heads * p.dv;
    const StreamData<float> data(p, kTokens, 11);
    const auto mixing = random_mixing(per_head ? p.heads : 0, kBlocks, 12);
    State state(p, mixing);
    auto o = poisoned<float>(data.v.size()), again = o;
    step_through(state, data, 0, kTokens, o);
    EXPECT_LE(worst(o, dense_oracle(p, data, weights_of(mixing))), 1.0);

    for (const std::int64_t back : {204, 203, 193, 192, 191, 184, 161, 160, 136, 97, 96, 95}) {
      State branch = state.fork();
      branch.rewind(back * kBlock);
      const std::string bytes = branch.serialize();
      State loaded = State::deserialize(bytes.data(), bytes.size());
      for (State* other : {&branch, &loaded}) {
        step_through(*other, data, back * kBlock, kTokens, again);
        EXPECT_EQ(other->serialize(), state.serialize()) << back;
        for (std::int64_t i = back * kBlock * per_token; i < kTokens * per_token; ++i) {
          ASSERT_EQ(o[i], again[i]) << back;
        }
      }
    }
  }
}

TEST_P(EachTargetStreams, WideGroupsTakeTheMemoryOfAtMost64Summaries) {
  const Problem p{.dk = 8,
                  .dv = 32,
                  .layout = BlockLayout::sequence(1, {.block = {1}}),
                  .mask = Mask::causal,
                  .normalizer = Normalizer::none};
  const StreamData<float> data(p, 400, 13);
  State state(p, ToeplitzMixing::causal({0.5F, 0.25F, 0.125F}));
  auto o = poisoned<float>(data.v.size());
  const std::size_t summary = 8 * 32 * sizeof(float);
  step_through(state, data, 0, 90, o);
  EXPECT_LT(state.bytes(), (90 + 24) * summary);
  step_through(state, data, 90, 400, o);
  EXPECT_GT(state.bytes(), (400 + 24 + 32) * summary);
  EXPECT_LT(state.bytes(), (400 + 24 + 64) * summary);
}

}  // namespace
}  // namespace mhla::test
