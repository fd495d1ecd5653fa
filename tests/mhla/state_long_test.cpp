// Streams of many blocks, where mixtures are prepared in groups: they give the bits of a stream
// that prepared nothing, at every kind of branch, and for every instruction set.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "mhla/error.h"
#include "mhla/state.h"
#include "state_fixture.h"

namespace mhla::test {
namespace {

struct Shape {
  std::int64_t batch, heads, dk, dv, block, tokens;
};

Problem problem_of(const Shape& shape, DType dtype) {
  return {.batch = shape.batch,
          .heads = shape.heads,
          .dk = shape.dk,
          .dv = shape.dv,
          .layout = BlockLayout::sequence(shape.block, {.block = {shape.block}}),
          .mask = Mask::causal,
          .scale = 0.5,
          .dtype = dtype};
}

// Steps, pieces, forks and returns in random order.
template <typename E>
void wander(Problem p, std::int64_t tokens, unsigned seed) {
  p.dtype = dtype_of<E>();
  SCOPED_TRACE(p.to_string());
  const std::int64_t block = p.layout.cut().block[0];
  const StreamData<E> data(p, tokens, seed);
  const auto mixing = random_mixing(p.mixing_per_head ? p.heads : 0, tokens / block + 1, seed + 1);
  const Expected expected = dense_oracle(p, data, weights_of(mixing));
  auto o = poisoned<E>(data.v.size());
  std::mt19937 random(seed + 2);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  State state(p, mixing);
  State kept = state.fork();
  for (int returns = 0; state.tokens() < tokens;) {
    const std::int64_t at = state.tokens();
    const std::int64_t kind = below(12), left = tokens - at;
    if (kind == 0 && returns < 6) {
      state.rewind(below(at / block + 1) * block);
      ++returns;
    } else if (kind == 1) {
      kept = state.fork();
    } else if (kind == 2 && returns < 6) {
      std::swap(state, kept);
      ++returns;
    } else if (kind == 3) {
      const std::string bytes = state.serialize();
      state = State::deserialize(bytes.data(), bytes.size());
      EXPECT_EQ(state.serialize(), bytes);
    } else if (kind < 6) {
      const std::int64_t count = std::min(left, 1 + below(2 * block + 3));
      state.prefill(data.inputs(at, count), data.piece(o, p.dv, at, count));
    } else {
      step_through(state, data, at, at + std::min<std::int64_t>(left, 1 + below(12)), o);
    }
  }
  EXPECT_LE(worst(o, expected), 1.0);
}

TEST(LongState, WandersAndStillAgreesWithTheDefinition) {
  for (const Normalizer normalizer :
       {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
    Problem p = problem_of({2, 2, 5, 20, 3, 0}, DType::f32);
    p.normalizer = normalizer;
    wander<float>(p, 130, 1);
    wander<double>(p, 130, 2);
    p.mixing_per_head = true;
    wander<float>(p, 130, 3);
    wander<BFloat16>(p, 100, 4);
    wander<Float16>(p, 100, 5);
  }
}

TEST(LongState, LongBlocksAndWideHeadsWander) {
  wander<float>(problem_of({1, 2, 33, 130, 70, 0}, DType::f32), 300, 6);
  wander<BFloat16>(problem_of({1, 1, 64, 64, 16, 0}, DType::f32), 200, 7);
  Problem p = problem_of({1, 1, 17, 300, 24, 0}, DType::f32);
  p.separate_denominator = true;
  wander<float>(p, 200, 8);
}

// Past the 96th block, from where on wide groups are prepared too.
TEST(LongState, HundredsOfBlocksWander) {
  Problem p = problem_of({1, 2, 4, 20, 2, 0}, DType::f32);
  for (unsigned seed = 20; seed < 24; ++seed) wander<float>(p, 420, seed);
  wander<double>(p, 420, 24);
  p.normalizer = Normalizer::shared_position;
  wander<BFloat16>(p, 420, 25);
}

TEST(LongState, WhatWasPreparedHasTheBitsOfWhatIsMixedAnew) {
  const Problem p = problem_of({1, 2, 6, 40, 4, 0}, DType::f32);
  const std::int64_t n = 40 * 4 + 2;
  const StreamData<float> data(p, n + 8, 9);
  State state(p, random_mixing(0, 50, 10));
  auto o = poisoned<float>(data.v.size()), again = o;
  step_through(state, data, 0, n, o);
  for (const std::int64_t back : {40, 39, 33, 32, 31, 17, 9}) {
    State branch = state.fork();
    branch.rewind(back * 4);
    step_through(branch, data, back * 4, n, again);
    for (std::int64_t i = back * 4 * 80; i < n * 80; ++i) ASSERT_EQ(o[i], again[i]) << back;
    EXPECT_EQ(branch.serialize(), state.serialize());
  }
  const std::string bytes = state.serialize();
  State loaded = State::deserialize(bytes.data(), bytes.size());
  step_through(loaded, data, n, n + 8, again);
  step_through(state, data, n, n + 8, o);
  EXPECT_EQ(loaded.serialize(), state.serialize());
}

}  // namespace
}  // namespace mhla::test
