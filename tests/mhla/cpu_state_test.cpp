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

}  // namespace
}  // namespace mhla::test
