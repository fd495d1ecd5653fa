// Every wrong call of State has one clear error, and leaves the state as it was.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "mhla/error.h"
#include "mhla/state.h"
#include "state_fixture.h"

namespace mhla::test {
namespace {

// The error must have the code and contain every given part of a message.
void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error, expected one with '" << parts.front() << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const auto& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
  }
}

Problem small_problem() {
  return {.batch = 2,
          .heads = 2,
          .dk = 3,
          .dv = 4,
          .layout = BlockLayout::sequence(12, {.block = {4}}),
          .mask = Mask::causal};
}

const MixingMatrix kMixing = MixingMatrix::constant(3, 3, 0.5F);

void expect_refused(ErrorCode code, const std::vector<std::string>& parts,
                    const std::function<void(Problem&)>& change) {
  Problem p = small_problem();
  change(p);
  expect_error(code, parts, [&] { State(p, kMixing); });
}

constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;

TEST(StateRefuses, AProblemWithoutAPast) {
  expect_refused(kInvalid, {"[mhla.state] mask", "causal or block_causal"},
                 [](Problem& p) { p.mask = Mask::none; });
}

TEST(StateRefuses, CrossAttention) {
  expect_refused(kInvalid, {"[mhla.state] layout_k"}, [](Problem& p) { p.layout_k = p.layout; });
}

TEST(StateRefuses, Grids) {
  expect_refused(kInvalid, {"1-D", "grid=4x4 block=2x2"},
                 [](Problem& p) { p.layout = BlockLayout::grid({4, 4}, {.block = {2, 2}}); });
}

TEST(StateRefuses, PackedSequences) {
  expect_refused(kInvalid, {"2 packed"},
                 [](Problem& p) { p.layout = BlockLayout::packed({0, 4, 9}, {.block = {4}}); });
}

TEST(StateRefuses, ANumberOfBlocksInsteadOfTheirSize) {
  expect_refused(kInvalid, {"block size", "blocks=3"},
                 [](Problem& p) { p.layout = BlockLayout::sequence(12, {.blocks = {3}}); });
}

TEST(StateRefuses, AnEmptyBatch) {
  expect_refused(kInvalid, {"batch"}, [](Problem& p) { p.batch = 0; });
}

TEST(StateRefuses, DevicesItDoesNotServe) {
  expect_refused(ErrorCode::unsupported, {"cuda:1", "CPU"},
                 [](Problem& p) { p.device = Device::cuda(1); });
}

TEST(StateRefuses, ContradictoryProblems) {
  expect_refused(kInvalid, {"heads"}, [](Problem& p) { p.heads = 0; });
  expect_refused(kInvalid, {"overflow"}, [](Problem& p) { p.dk = p.dv = std::int64_t{1} << 40; });
  expect_refused(kInvalid, {"overflow"}, [](Problem& p) {
    p.layout = BlockLayout::sequence(1, {.block = {std::int64_t{1} << 60}});
  });
}

TEST(StateRefuses, AMixingOfTheWrongShape) {
  const Problem p = small_problem();
  expect_error(kInvalid, {"shared by all heads", "heads = 2"},
               [&] { State(p, kMixing.repeated_per_head(2)); });
  expect_error(kInvalid, {"3 rows", "2 columns"},
               [&] { State(p, MixingMatrix::constant(3, 2, 1)); });
  Problem per_head = p;
  per_head.mixing_per_head = true;
  expect_error(kInvalid, {"one per head", "heads = 0"}, [&] { State(per_head, kMixing); });
  expect_error(kInvalid, {"heads = 3"}, [&] { State(per_head, kMixing.repeated_per_head(3)); });
  expect_error(kInvalid, {"mixing_per_head"},
               [&] { State(per_head, ToeplitzMixing::causal({1})); });
  expect_error(kInvalid, {"1-D", "2 axes"}, [&] { State(p, ToeplitzMixing({0, 0}, {1})); });
}

// A state of six tokens, and views of two more that fit it.
class StateCalls : public testing::Test {
 protected:
  StateCalls() : state_(problem_, kMixing) {
    state_.prefill(data_.inputs(0, 6), data_.piece(out_, problem_.dv, 0, 6));
    before_ = state_.serialize();
    in_ = data_.inputs(6, 2);
    o_ = data_.piece(out_, problem_.dv, 6, 2);
  }
  void TearDown() override {
    EXPECT_EQ(state_.serialize(), before_) << "a failed call changed the state";
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const bool unread = i / (problem_.heads * problem_.dv) % data_.tokens >= 6;
      EXPECT_EQ(std::isnan(out_[i]), unread) << "a failed call wrote to o";
    }
  }
  void expect_prefill_error(const std::vector<std::string>& parts) {
    expect_error(kInvalid, parts, [&] { state_.prefill(in_, o_); });
  }

  const Problem problem_ = small_problem();
  const StreamData<float> data_{problem_, 12, 1};
  std::vector<float> out_ = poisoned<float>(data_.v.size());
  State state_;
  std::string before_;
  State::Inputs in_;
  TensorView o_;
};

TEST_F(StateCalls, NeedEveryTensor) {
  in_.q = {};
  expect_prefill_error({"[mhla.state.prefill] q", "got nothing"});
  in_ = data_.inputs(6, 2);
  in_.v = {};
  expect_prefill_error({"v: expected shape [2, 2, 2, 4]", "got nothing"});
  in_ = data_.inputs(6, 2);
  o_ = {};
  expect_prefill_error({"o: expected shape [2, 2, 2, 4]", "got nothing"});
}

TEST_F(StateCalls, NeedMatchingShapes) {
  in_.k.shape[1] = 1;
  expect_prefill_error({"k: expected shape [2, 2, 2, 3], got [2, 1, 2, 3]"});
  in_ = data_.inputs(6, 2);
  in_.q.shape[0] = 1;
  expect_prefill_error({"q: expected shape [2, 2, 2, 3], got [1, 2, 2, 3]"});
  in_ = data_.inputs(6, 2);
  in_.q.shape[1] = -1;
  in_.k.shape[1] = in_.v.shape[1] = o_.shape[1] = -1;
  expect_prefill_error({"negative"});
}

TEST_F(StateCalls, NeedTheDtypeAndDeviceOfTheProblem) {
  in_.v.dtype = DType::f64;
  expect_prefill_error({"v: expected f32, got f64"});
  in_ = data_.inputs(6, 2);
  o_.device = Device::cuda(0);
  expect_prefill_error({"o: expected on cpu, got cuda:0"});
}

TEST_F(StateCalls, NeedAddressableViews) {
  in_.k.strides[3] = 2;
  expect_prefill_error({"k: the last dimension must be contiguous"});
  in_ = data_.inputs(6, 2);
  in_.k.data = nullptr;
  expect_prefill_error({"k: data is null"});
  in_ = data_.inputs(6, 2);
  o_.strides[1] = 0;
  expect_prefill_error({"o: its elements overlap"});
  o_ = in_.v;
  expect_prefill_error({"o: starts at the same address as v"});
}

TEST_F(StateCalls, NeedTheDenominatorExactlyWhenTheProblemHasOne) {
  in_.q_den = in_.q;
  expect_prefill_error({"q_den", "separate_denominator"});
  in_.q_den = {};
  in_.k_den = in_.k;
  expect_prefill_error({"k_den", "separate_denominator"});
  Problem p = problem_;
  p.separate_denominator = true;
  State separate(p, kMixing);
  in_.k_den = {};
  expect_error(kInvalid, {"q_den: expected shape"}, [&] { separate.prefill(in_, o_); });
  in_.q_den = in_.q;
  expect_error(kInvalid, {"k_den: expected shape"}, [&] { separate.prefill(in_, o_); });
}

TEST_F(StateCalls, EndWithTheRowsOfTheMixingMatrix) {
  const StreamData<float> longer(problem_, 20, 2);
  std::vector<float> o(longer.v.size());
  const auto too_many = [&](State& s, std::int64_t count) {
    s.prefill(longer.inputs(0, count), longer.piece(o, problem_.dv, 0, count));
  };
  expect_error(kInvalid,
               {"[mhla.state.prefill] mixing", "3 rows", "block 3", "resample", "ToeplitzMixing"},
               [&] { too_many(state_, 7); });
  State full = state_.fork();
  too_many(full, 6);  // exactly three blocks
  EXPECT_EQ(full.tokens(), 12);
  expect_error(kInvalid, {"[mhla.state.step] mixing", "token 12 is in block 3"},
               [&] { full.step(longer.inputs(0, 1), longer.piece(o, problem_.dv, 0, 1)); });
}

TEST_F(StateCalls, StepOneTokenAtATime) {
  expect_error(kInvalid, {"[mhla.state.step] q", "one token, got 2"},
               [&] { state_.step(in_, o_); });
  expect_error(kInvalid, {"one token, got 0"},
               [&] { state_.step(data_.inputs(6, 0), data_.piece(out_, problem_.dv, 6, 0)); });
}

TEST_F(StateCalls, ReadWholeBlocksWhenBlockCausal) {
  Problem p = problem_;
  p.mask = Mask::block_causal;
  State blocks(p, kMixing);
  expect_error(kInvalid, {"whole blocks of 4", "got 2 tokens"}, [&] { blocks.prefill(in_, o_); });
  expect_error(kInvalid, {"[mhla.state.step] mask", "whole blocks of 4"},
               [&] { blocks.step(data_.inputs(6, 1), data_.piece(out_, p.dv, 6, 1)); });
  EXPECT_EQ(blocks.tokens(), 0);
}

TEST_F(StateCalls, RewindOnlyToBlockEdgesOfThePast) {
  expect_error(kInvalid, {"[mhla.state.rewind]", "got 5", "before is 4"},
               [&] { state_.rewind(5); });
  expect_error(kInvalid, {"got 6"}, [&] { state_.rewind(6); });  // here, but inside a block
  expect_error(kInvalid, {"0 .. 6", "got 8"}, [&] { state_.rewind(8); });
  expect_error(kInvalid, {"got -4"}, [&] { state_.rewind(-4); });
}

}  // namespace
}  // namespace mhla::test
