// A stream gives what the operator gives, however it is cut into pieces, forked, rewound or
// stepped.
#include "mhla/state.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "mhla/core/state_core.h"
#include "mhla/error.h"
#include "state_fixture.h"

namespace mhla::test {
namespace {

constexpr Mask kMasks[] = {Mask::causal, Mask::block_causal};
constexpr Normalizer kNormalizers[] = {Normalizer::exact, Normalizer::shared_position,
                                       Normalizer::none};
constexpr FeatureMap kMaps[] = {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1,
                                FeatureMap::identity};

Problem stream_problem(std::int64_t block) {
  return {.batch = 2,
          .heads = 3,
          .dk = 3,
          .dv = 5,
          .layout = BlockLayout::sequence(4 * block, {.block = {block}}),
          .mask = Mask::causal};
}

// Prefill in random pieces, and steps where they are legal, against the definition.
template <typename E>
void expect_agreement(Problem p, std::int64_t tokens, unsigned seed) {
  SCOPED_TRACE(p.to_string() + " tokens=" + std::to_string(tokens));
  p.dtype = dtype_of<E>();
  const std::int64_t block = p.layout.cut().block[0];
  const StreamData<E> data(p, tokens, seed);
  const auto mixing = random_mixing(p.mixing_per_head ? p.heads : 0, (tokens + block - 1) / block,
                                    seed + 1);
  const Expected expected = dense_oracle(p, data, weights_of(mixing));
  std::mt19937 random(seed + 2);

  State in_pieces(p, mixing);
  auto o = poisoned<E>(data.v.size());
  prefill_in_pieces(in_pieces, data, 0, tokens, random, o);
  EXPECT_LE(worst(o, expected), 1.0) << "in pieces";
  EXPECT_EQ(in_pieces.tokens(), tokens);

  State at_once(p, mixing);
  o = poisoned<E>(data.v.size());
  at_once.prefill(data.inputs(0, tokens), data.piece(o, p.dv, 0, tokens));
  EXPECT_LE(worst(o, expected), 1.0) << "at once";

  if (p.mask == Mask::block_causal && block != 1) return;
  State stepped(p, mixing);
  o = poisoned<E>(data.v.size());
  step_through(stepped, data, 0, tokens, o);
  EXPECT_LE(worst(o, expected), 1.0) << "step by step";
}

using Form = std::tuple<Mask, Normalizer, FeatureMap>;

class StateForms : public testing::TestWithParam<Form> {
 protected:
  Problem problem(std::int64_t block) const {
    Problem p = stream_problem(block);
    std::tie(p.mask, p.normalizer, p.feature_map) = GetParam();
    p.scale = 0.7;
    return p;
  }
  // block_causal streams are whole blocks; causal ones end inside a block.
  std::int64_t tokens(std::int64_t block) const {
    return std::get<0>(GetParam()) == Mask::causal ? 4 * block + (block + 1) / 2 : 5 * block;
  }
};

TEST_P(StateForms, AgreesWithTheDefinitionInF64) {
  for (const std::int64_t block : {1, 2, 5}) {
    expect_agreement<double>(problem(block), tokens(block), 10);
  }
}

TEST_P(StateForms, AgreesWithTheDefinitionInEveryOtherType) {
  expect_agreement<float>(problem(4), tokens(4), 20);
  expect_agreement<BFloat16>(problem(4), tokens(4), 21);
  expect_agreement<Float16>(problem(4), tokens(4), 22);
}

TEST_P(StateForms, TakesOneMatrixPerHead) {
  Problem p = problem(3);
  p.mixing_per_head = true;
  expect_agreement<double>(p, tokens(3), 30);
}

TEST_P(StateForms, TakesADenominatorOfItsOwn) {
  Problem p = problem(3);
  p.separate_denominator = true;
  if (p.normalizer == Normalizer::none) {
    EXPECT_THROW(State(p, random_mixing(0, 5, 1)), Error);
    return;
  }
  p.eps = 0.125;
  expect_agreement<double>(p, tokens(3), 40);
  expect_agreement<float>(p, tokens(3), 41);
}

TEST_P(StateForms, CrossesTheEdgesOfTheInternalChunks) {
  Problem p = problem(150);  // chunks of 64 tokens
  p.batch = 1;
  p.heads = 1;
  expect_agreement<double>(p, p.mask == Mask::causal ? 219 : 300, 50);
}

TEST_P(StateForms, RewindAndReplayGiveTheSameBitsAsAFreshStream) {
  const Problem p = problem(4);
  const std::int64_t n = tokens(4);
  const StreamData<float> data(p, n, 60), other(p, n, 61);
  const auto mixing = random_mixing(0, 5, 62);
  State state(p, mixing), fresh(p, mixing);
  auto o = poisoned<float>(data.v.size()), expected = o;
  const auto feed = [&](State& to, const StreamData<float>& from, std::int64_t first,
                        std::int64_t end, std::vector<float>& out) {
    for (; first < end; first += std::min<std::int64_t>(4, end - first)) {
      const std::int64_t count = std::min<std::int64_t>(4, end - first);
      to.prefill(from.inputs(first, count), from.piece(out, p.dv, first, count));
    }
  };
  feed(fresh, data, 0, n, expected);
  feed(state, data, 0, 8, o);
  feed(state, other, 8, n, o);  // a false start
  state.rewind(8);
  EXPECT_EQ(state.tokens(), 8);
  feed(state, data, 8, n, o);
  EXPECT_TRUE(same_bits(o, expected));
  EXPECT_EQ(state.serialize(), fresh.serialize());
  state.rewind(0);
  EXPECT_EQ(state.serialize(), State(p, mixing).serialize());
}

TEST_P(StateForms, ForksDivergeIndependently) {
  const Problem p = problem(4);
  const std::int64_t n = tokens(4), split = p.mask == Mask::causal ? 10 : 8;
  const StreamData<float> data(p, n, 70), other(p, n, 71);
  const auto mixing = random_mixing(0, 5, 72);
  State state(p, mixing);
  auto o = poisoned<float>(data.v.size());
  state.prefill(data.inputs(0, split), data.piece(o, p.dv, 0, split));
  State branch = state.fork();
  State untouched = state.fork();
  EXPECT_LE(branch.bytes(), state.bytes());
  EXPECT_EQ(branch.serialize(), state.serialize());

  auto expected = poisoned<float>(data.v.size()), o_branch = expected;
  State alone = State::deserialize(state.serialize().data(), state.serialize().size());
  alone.prefill(data.inputs(split, n - split), data.piece(expected, p.dv, split, n - split));
  branch.prefill(other.inputs(split, n - split), other.piece(o_branch, p.dv, split, n - split));
  state.prefill(data.inputs(split, n - split), data.piece(o, p.dv, split, n - split));
  EXPECT_EQ(state.serialize(), alone.serialize());
  EXPECT_NE(branch.serialize(), alone.serialize());
  EXPECT_EQ(untouched.tokens(), split);
  for (std::int64_t t = split; t < n; ++t) EXPECT_EQ(o[t * 15], expected[t * 15]);
}

TEST_P(StateForms, SavedStatesContinueBitForBit) {
  Problem p = problem(4);
  p.scale = 1.0 / 3.0;
  const std::int64_t n = tokens(4), split = p.mask == Mask::causal ? 10 : 8;
  const StreamData<float> data(p, n, 80);
  State state(p, random_mixing(0, 5, 81));
  auto o = poisoned<float>(data.v.size()), o_loaded = o;
  state.prefill(data.inputs(0, split), data.piece(o, p.dv, 0, split));
  const std::string bytes = state.serialize();
  State loaded = State::deserialize(bytes.data(), bytes.size());
  EXPECT_EQ(loaded.serialize(), bytes);
  EXPECT_EQ(loaded.problem(), state.problem());
  EXPECT_EQ(loaded.tokens(), split);
  state.prefill(data.inputs(split, n - split), data.piece(o, p.dv, split, n - split));
  loaded.prefill(data.inputs(split, n - split), data.piece(o_loaded, p.dv, split, n - split));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = data.row(b, split, 0) * p.dv; i < data.row(b, n - 1, p.heads) * p.dv;
         ++i) {
      EXPECT_EQ(o[i], o_loaded[i]);
    }
  }
  EXPECT_EQ(loaded.serialize(), state.serialize());
}

std::string form_name(const testing::TestParamInfo<Form>& info) {
  const auto& [mask, normalizer, map] = info.param;
  return std::string(name(mask)) + "_" + name(normalizer) + "_" + name(map);
}

INSTANTIATE_TEST_SUITE_P(All, StateForms,
                         testing::Combine(testing::ValuesIn(kMasks),
                                          testing::ValuesIn(kNormalizers),
                                          testing::ValuesIn(kMaps)),
                         form_name);

TEST(State, AToeplitzStreamHasNoEndAndEqualsItsMatrix) {
  Problem p = stream_problem(2);
  const StreamData<float> data(p, 25, 1);
  for (const bool normalize : {false, true}) {
    const auto toeplitz = ToeplitzMixing::causal({0.5F, 0.25F, 0.125F}, normalize);
    std::vector<float> rows(13 * 13);
    for (std::int64_t i = 0; i < 13; ++i) {
      const auto row = toeplitz.causal_row(i);
      std::copy(row.begin(), row.end(), rows.begin() + i * 13);
    }
    const auto matrix = MixingMatrix::from(rows.data(), 0, 13, 13);
    State from_toeplitz(p, toeplitz), from_matrix(p, matrix);
    auto o = poisoned<float>(data.v.size()), expected = o;
    from_toeplitz.prefill(data.inputs(0, 25), data.piece(o, p.dv, 0, 25));
    from_matrix.prefill(data.inputs(0, 25), data.piece(expected, p.dv, 0, 25));
    EXPECT_TRUE(same_bits(o, expected));
    EXPECT_LE(worst(o, dense_oracle(p, data, weights_of(matrix))), 1.0);
    const std::string bytes = from_toeplitz.serialize();
    EXPECT_EQ(State::deserialize(bytes.data(), bytes.size()).serialize(), bytes);
  }
}

TEST(State, ReadsSlicesOfAFusedProjectionAndWritesBetweenOtherData) {
  Problem p = stream_problem(2);
  p.dk = p.dv = 4;
  const std::int64_t n = 7, width = p.heads * p.dk;
  const StreamData<float> data(p, n, 3);
  std::vector<float> fused(p.batch * n * 3 * width), out(p.batch * n * 2 * width, -7.0F);
  for (std::int64_t row = 0; row < p.batch * n; ++row) {
    std::copy_n(data.q.begin() + row * width, width, fused.begin() + (row * 3 + 0) * width);
    std::copy_n(data.k.begin() + row * width, width, fused.begin() + (row * 3 + 1) * width);
    std::copy_n(data.v.begin() + row * width, width, fused.begin() + (row * 3 + 2) * width);
  }
  const auto slice = [&](std::vector<float>& values, int count, int which) {
    return TensorView::strided(values.data() + which * width, {p.batch, n, p.heads, p.dk},
                               {n * count * width, count * width, p.dk, 1});
  };
  const auto mixing = random_mixing(0, 4, 4);
  State plain(p, mixing), sliced(p, mixing);
  auto expected = poisoned<float>(data.v.size());
  plain.prefill(data.inputs(0, n), data.piece(expected, p.dv, 0, n));
  sliced.prefill(slice(fused, 3, 0), slice(fused, 3, 1), slice(fused, 3, 2), slice(out, 2, 0));
  for (std::int64_t row = 0; row < p.batch * n; ++row) {
    for (std::int64_t c = 0; c < width; ++c) {
      EXPECT_EQ(out[row * 2 * width + c], expected[row * width + c]);
      EXPECT_EQ(out[(row * 2 + 1) * width + c], -7.0F);
    }
  }
}

TEST(State, AZeroDenominatorGivesAZeroRow) {
  Problem p = stream_problem(2);
  p.feature_map = FeatureMap::relu;
  StreamData<float> data(p, 5, 5);
  std::fill(data.q.begin() + data.row(0, 3, 0) * p.dk, data.q.begin() + data.row(0, 4, 0) * p.dk,
            -1.0F);
  State state(p, random_mixing(0, 3, 6));
  auto o = poisoned<float>(data.v.size());
  state.prefill(data.inputs(0, 5), data.piece(o, p.dv, 0, 5));
  for (std::int64_t h = 0; h < p.heads; ++h) {
    for (std::int64_t c = 0; c < p.dv; ++c) EXPECT_EQ(o[data.row(0, 3, h) * p.dv + c], 0.0F);
  }
}

TEST(State, AnEmptyPieceIsReadAndChangesNothing) {
  const Problem p = stream_problem(2);
  State state(p, random_mixing(0, 3, 6));
  const std::string before = state.serialize();
  const auto none = [&](std::int64_t width) {
    return TensorView::contiguous(nullptr, DType::f32, {p.batch, 0, p.heads, width});
  };
  state.prefill(none(p.dk), none(p.dk), none(p.dv), none(p.dv));
  EXPECT_EQ(state.serialize(), before);
}

// Rows of 5 values are padded to 16, 3 sums of keys to 16.
constexpr std::size_t kPaddedSummary = 2 * 3 * (3 * 16 + 16) * sizeof(float);

TEST(State, MemoryGrowsByOneSummaryPerBlock) {
  const Problem p = stream_problem(2);
  const std::int64_t blocks = 64;
  const StreamData<float> data(p, 2 * blocks, 7);
  State state(p, random_mixing(0, 2 * blocks, 8));
  auto o = poisoned<float>(data.v.size());
  std::vector<std::size_t> sizes;
  for (std::int64_t t = 0; t < 2 * blocks; t += 2) {
    state.prefill(data.inputs(t, 2), data.piece(o, p.dv, t, 2));
    sizes.push_back(state.bytes());
  }
  // Once the mixtures that are prepared have their memory, after two groups of eight blocks.
  for (std::size_t i = 24; i < sizes.size(); ++i) {
    EXPECT_EQ(sizes[i] - sizes[i - 1], kPaddedSummary) << i;
  }
}

TEST(State, CopiesOfAStreamShareEveryClosedSummary) {
  const Problem p = stream_problem(2);
  const StreamData<float> data(p, 7, 9);
  const auto setup = streaming::make_setup(p, random_mixing(0, 4, 10));
  streaming::Stream<float> stream(setup);
  auto o = poisoned<float>(data.v.size());
  stream.read(data.inputs(0, 5), data.piece(o, p.dv, 0, 5), nullptr);
  const streaming::Stream<float> copy = stream;
  stream.read(data.inputs(5, 2), data.piece(o, p.dv, 5, 2), nullptr);
  ASSERT_EQ(copy.closed(), 2);
  ASSERT_EQ(stream.closed(), 3);
  for (std::int64_t b = 0; b < 2; ++b) EXPECT_EQ(copy.summary(b), stream.summary(b));
}

TEST(State, TheProblemItKeepsHasNoLength) {
  const Problem p = stream_problem(64);
  const State state(p, random_mixing(0, 2, 1));
  EXPECT_EQ(state.block_size(), 64);
  EXPECT_EQ(state.problem().layout, BlockLayout::sequence(64, {.block = {64}}));
  EXPECT_EQ(state.tokens(), 0);
}

}  // namespace
}  // namespace mhla::test
