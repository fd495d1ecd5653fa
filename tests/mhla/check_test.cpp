// One negative test per check of a call, and the promise that nothing is touched before them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "mhla/core/half.h"
#include "support/tensors.h"

namespace mhla {
namespace {

using test::Call;
using test::error_of;

Problem small() {
  return {.batch = 2,
          .heads = 3,
          .dk = 4,
          .dv = 5,
          .layout = BlockLayout::sequence(7, {.block = {4}}),
          .dtype = DType::f64};
}

// The error of a forward call whose arguments were changed; the output must stay untouched.
template <typename Change>
std::string forward_error(const Problem& problem, Change&& change) {
  Call call(problem, 1);
  ForwardInputs inputs = call.inputs();
  ForwardOutputs outputs{.o = call.output_view(call.o)};
  change(inputs, outputs);
  const std::string message = error_of([&] { forward(plan(call.problem), inputs, outputs); });
  for (const double x : call.o) EXPECT_TRUE(std::isnan(x)) << "written before the check";
  return message;
}

TEST(Check, ShapesAreNamedWithExpectedAndGiven) {
  const auto message = forward_error(small(), [](auto& in, auto&) { in.k.shape[1] = 6; });
  EXPECT_EQ(message, "[mhla.forward] k: expected shape [2, 7, 3, 4], got [2, 6, 3, 4]");
}

TEST(Check, EachInputAndOutputIsChecked) {
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(forward_error(small(), [](auto& in, auto&) { in.q.rank = 3; }), "q: expected shape");
  has(forward_error(small(), [](auto& in, auto&) { in.q.rank = 7; }), "got rank 7");
  has(forward_error(small(), [](auto& in, auto&) { in.v.shape[3] = 4; }), "v: expected shape");
  has(forward_error(small(), [](auto&, auto& out) { out.o.shape[0] = 1; }), "o: expected shape");
  has(forward_error(small(), [](auto& in, auto&) { in.q = {}; }), "got nothing");
  has(forward_error(small(), [](auto& in, auto&) { in.q.dtype = DType::f32; }),
      "q: expected f64, got f32");
  has(forward_error(small(), [](auto& in, auto&) { in.q.device = Device::cuda(1); }),
      "expected on cpu, got cuda:1");
  has(forward_error(small(), [](auto& in, auto&) { in.q.data = nullptr; }), "q: data is null");
  has(forward_error(small(),
                    [](auto& in, auto&) { in.q.data = static_cast<char*>(in.q.data) + 4; }),
      "q: data is not aligned to its elements of 8 bytes");
  has(forward_error(small(), [](auto& in, auto&) { in.q.strides[3] = 2; }), "must be contiguous");
  has(forward_error(small(), [](auto& in, auto&) { in.q.strides[1] = -1; }), "negative stride");
  has(forward_error(small(), [](auto& in, auto&) { in.q.strides[0] = std::int64_t{1} << 62; }),
      "overflow");
  has(forward_error(small(), [](auto&, auto& out) { out.o.strides[1] = 0; }), "overlap");
  has(forward_error(small(), [](auto&, auto& out) { out.o.strides[2] = 3; }), "overlap");
  has(forward_error(small(), [](auto& in, auto& out) { out.o.data = in.v.data; }),
      "same address as v");
  has(forward_error(small(), [](auto& in, auto&) { in.q_den = in.q; }),
      "separate_denominator = false");
}

TEST(Check, DenominatorInputsAreRequiredWhenDeclared) {
  Problem problem = small();
  problem.separate_denominator = true;
  const auto message = forward_error(problem, [](auto& in, auto&) { in.k_den = {}; });
  EXPECT_NE(message.find("k_den: expected shape"), std::string::npos) << message;
}

TEST(Check, AnIndexPastTheMixingMatrixIsRefused) {
  const auto message = forward_error(small(), [](auto& in, auto&) { in.mixing.shape[0] = 1; });
  EXPECT_NE(message.find("mixing: expected shape [2, 2] or larger, got [1, 2]"), std::string::npos)
      << message;
}

TEST(Check, AGridNeedsExactlyItsMixingMatrix) {
  Problem problem = small();
  problem.layout = BlockLayout::grid({4, 4}, {.block = {2, 2}});
  std::vector<double> large(25, 1.0);
  const auto message = forward_error(
      problem, [&](auto& in, auto&) { in.mixing = TensorView::of(large.data(), {5, 5}); });
  EXPECT_NE(message.find("expected shape [4, 4], got [5, 5]"), std::string::npos) << message;
  problem.layout_k = BlockLayout::sequence(6, {.block = {2}});
  const auto cross = forward_error(problem, [](auto& in, auto&) { in.mixing.shape[1] = 2; });
  EXPECT_NE(cross.find("expected shape [4, 3] or more columns, got [4, 2]"), std::string::npos)
      << cross;
}

TEST(Check, MixingIsF32OrTheProblemsF64AndPerHeadWhenDeclared) {
  const auto f16 = forward_error(small(), [](auto& in, auto&) { in.mixing.dtype = DType::f16; });
  EXPECT_NE(f16.find("mixing: expected f32 or f64, got f16"), std::string::npos) << f16;
  Problem problem = small();
  problem.mixing_per_head = true;
  const auto rank = forward_error(problem, [](auto& in, auto&) { in.mixing.rank = 2; });
  EXPECT_NE(rank.find("expected shape [3, 2, 2]"), std::string::npos) << rank;
}

TEST(Check, TheWorkspaceMustBeLargeAlignedAndThere) {
  Call call(small(), 1);
  const Plan p = plan(call.problem);
  const auto message = [&](const Workspace& workspace) {
    return error_of(
        [&] { forward(p, call.inputs(), {.o = call.output_view(call.o)}, workspace, nullptr); });
  };
  EXPECT_NE(message({nullptr, 16}).find("workspace: expected at least"), std::string::npos);
  EXPECT_NE(message({nullptr, std::size_t{1} << 20}).find("data is null"), std::string::npos);
  alignas(kWorkspaceAlignment) static std::array<std::byte, 1 << 16> buffer;
  EXPECT_NE(message({buffer.data() + 8, p.forward_workspace()}).find("aligned"), std::string::npos);
  EXPECT_EQ(message({buffer.data(), p.forward_workspace()}), "");
}

TEST(Check, BackwardChecksItsOwnTensors) {
  Call call(small(), 1);
  call.forward();
  const auto message = [&](auto change) {
    BackwardInputs in = call.backward_inputs();
    BackwardOutputs out = call.backward_outputs();
    change(in, out);
    return error_of([&] { backward(plan(call.problem), in, out); });
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(message([](auto& in, auto&) { in.d_o.shape[3] = 1; }), "[mhla.backward] d_o: expected shape");
  has(message([](auto& in, auto&) { in.o = {}; }), "o: expected shape");
  has(message([](auto&, auto& out) { out.d_q.shape[1] = 3; }), "d_q: expected shape");
  has(message([](auto&, auto& out) { out.d_k = out.d_q; }),
      "d_k: starts at the same address as d_q");
  has(message([](auto&, auto& out) { out.d_v.dtype = DType::bf16; }), "d_v: expected f64");
  has(message([](auto&, auto& out) { out.d_mixing.shape[0] = 3; }), "d_mixing: expected shape");
  has(message([](auto&, auto& out) { out.d_mixing.dtype = DType::f32; }), "d_mixing: expected f64");
  has(message([](auto&, auto& out) { out.d_q_den = out.d_q; }), "d_q_den: asked for");
}

TEST(Check, TheCallWithoutAWorkspaceIsForTheCpu) {
  Problem problem = small();
  problem.device = Device::cuda(0);
  const auto message = error_of([&] { plan(problem); });
  if (!message.empty()) {
    EXPECT_NE(message.find("nothing serves"), std::string::npos) << message;
    EXPECT_NE(message.find("reference: runs on the CPU"), std::string::npos) << message;
  }
}

TEST(Check, UnknownImplementationsAreNamedWithTheNearest) {
  const auto message = error_of([] { plan(small(), {.implementation = "referense"}); });
  EXPECT_NE(message.find("did you mean 'reference'?"), std::string::npos) << message;
  EXPECT_NE(error_of([] { plan(small(), {.threads = -1}); }).find("threads"), std::string::npos);
}

TEST(Check, StridedSlicesOfAFusedProjectionGiveTheContiguousResult) {
  Problem problem = small();
  problem.dv = problem.dk;
  Call call(problem, 2);
  call.forward();
  const std::int64_t n = 7, h = 3, d = 4;
  std::vector<double> fused(2 * n * 3 * h * d), o(2 * n * 2 * h * d, -7.0);
  for (std::int64_t token = 0; token < 2 * n; ++token) {
    for (std::int64_t i = 0; i < h * d; ++i) {
      fused[token * 3 * h * d + i] = call.q[token * h * d + i];
      fused[token * 3 * h * d + h * d + i] = call.k[token * h * d + i];
      fused[token * 3 * h * d + 2 * h * d + i] = call.v[token * h * d + i];
    }
  }
  const auto slice = [&](int part) {
    return TensorView::strided(fused.data() + part * h * d, {2, n, h, d},
                               {n * 3 * h * d, 3 * h * d, d, 1});
  };
  const auto out = TensorView::strided(o.data(), {2, n, h, d}, {n * 2 * h * d, 2 * h * d, d, 1});
  forward(plan(problem),
          {.q = slice(0), .k = slice(1), .v = slice(2), .mixing = call.mixing_view(call.mixing)},
          {.o = out});
  for (std::int64_t token = 0; token < 2 * n; ++token) {
    for (std::int64_t i = 0; i < h * d; ++i) {
      EXPECT_EQ(o[token * 2 * h * d + i], call.o[token * h * d + i]);
      EXPECT_EQ(o[token * 2 * h * d + h * d + i], -7.0) << "written outside the view";
    }
  }
}

TEST(Half, ConversionsRoundToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(1.00390625f).bits, 0x3f80) << "halfway goes to even";
  EXPECT_EQ(to_bfloat16(1.01171875f).bits, 0x3f82) << "halfway goes to even";
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::nanf("")))));
  EXPECT_EQ(to_float16(1.0f).bits, 0x3c00);
  EXPECT_EQ(to_float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_float16(0x1p-25f).bits, 0x0000) << "halfway goes to even";
  EXPECT_EQ(to_float16(-0x1.8p-24f).bits, 0x8002);
  for (int bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(half))) {
      EXPECT_EQ(to_float16(to_float(half)).bits, half.bits);
    }
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(brain))) {
      EXPECT_EQ(to_bfloat16(to_float(brain)).bits, brain.bits);
    }
  }
}

}  // namespace
}  // namespace mhla
