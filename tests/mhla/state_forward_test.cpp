// The one-shot operator, prefill in pieces and single steps give the same outputs.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "mhla/mhla.h"
#include "state_fixture.h"

namespace mhla::test {
namespace {

template <typename E>
std::vector<double> widened(const std::vector<E>& values) {
  std::vector<double> result;
  for (const E value : values) result.push_back(to_float(value));
  return result;
}

// Three ways to the same numbers; the oracle only supplies the bound on rounding.
template <typename E>
void expect_one_shot_equals_stream(Problem p, std::int64_t tokens, unsigned seed) {
  const std::int64_t block = p.layout.cut().block[0];
  p.dtype = dtype_of<E>();
  p.layout = BlockLayout::sequence(tokens, {.block = {block}});
  SCOPED_TRACE(p.to_string());
  const StreamData<E> data(p, tokens, seed);
  const auto mixing = random_mixing(p.mixing_per_head ? p.heads : 0, (tokens + block - 1) / block,
                                    seed + 1);
  const State::Inputs in = data.inputs(0, tokens);
  auto one_shot = poisoned<E>(data.v.size()), streamed = one_shot;
  forward(plan(p, {.implementation = "reference"}),
          {.q = in.q,
           .k = in.k,
           .v = in.v,
           .mixing = mixing.view(),
           .q_den = in.q_den,
           .k_den = in.k_den},
          {.o = data.piece(one_shot, p.dv, 0, tokens)});

  Expected expected = dense_oracle(p, data, weights_of(mixing));
  expected.o = widened(one_shot);
  std::mt19937 random(seed + 2);
  State in_pieces(p, mixing);
  prefill_in_pieces(in_pieces, data, 0, tokens, random, streamed);
  EXPECT_LE(worst(streamed, expected), 2.0) << "in pieces";  // both sides round

  if (p.mask == Mask::block_causal && block != 1) return;
  State stepped(p, mixing);
  streamed = poisoned<E>(data.v.size());
  step_through(stepped, data, 0, tokens, streamed);
  EXPECT_LE(worst(streamed, expected), 2.0) << "step by step";
}

TEST(StateForward, OneShotPrefillAndStepAgreeForEveryMaskNormalizerAndMap) {
  unsigned seed = 0;
  for (const Mask mask : {Mask::causal, Mask::block_causal}) {
    for (const Normalizer normalizer :
         {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
      for (const FeatureMap map :
           {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1, FeatureMap::identity}) {
        for (const bool variant : {false, true}) {
          const Problem p{.batch = 2,
                          .heads = 2,
                          .dk = 5,
                          .dv = 3,
                          .layout = BlockLayout::sequence(1, {.block = {variant ? 1 : 6}}),
                          .mask = mask,
                          .normalizer = normalizer,
                          .feature_map = map,
                          .scale = 0.4,
                          // Keeps quotients inside the range of f16.
                          .eps = variant ? std::optional(0.125) : std::nullopt,
                          .separate_denominator = variant && normalizer != Normalizer::none,
                          .mixing_per_head = variant};
          const std::int64_t tokens = mask == Mask::causal ? 21 : 24;
          seed += 10;
          expect_one_shot_equals_stream<double>(p, tokens, seed);
          expect_one_shot_equals_stream<float>(p, tokens, seed + 1);
          expect_one_shot_equals_stream<BFloat16>(p, tokens, seed + 2);
          expect_one_shot_equals_stream<Float16>(p, tokens, seed + 3);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mhla::test
