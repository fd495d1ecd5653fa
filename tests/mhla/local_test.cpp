// The local term: a depthwise convolution of v that some implementations add to the output.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/tensors.h"

namespace mhla {
namespace {

using test::Call;
using test::error_of;
using test::random_values;
using test::relative_error;
using Extents = std::array<std::int64_t, 3>;

constexpr double kRounding = 1e-13;

struct Case {
  Problem problem;
  Extents grid, kernel;
};

Case picture() {
  return {.problem = {.batch = 2,
                      .heads = 3,
                      .dk = 4,
                      .dv = 5,
                      .layout = BlockLayout::grid({6, 7}, {.block = {3, 4}}),
                      .normalizer = Normalizer::shared_position,
                      .dtype = DType::f64},
          .grid = {1, 6, 7},
          .kernel = {1, 3, 3}};
}

Case video() {
  return {.problem = {.heads = 2,
                      .dk = 3,
                      .dv = 2,
                      .layout = BlockLayout::grid({3, 4, 5}, {.block = {2, 2, 2}}),
                      .dtype = DType::f64},
          .grid = {3, 4, 5},
          .kernel = {3, 1, 5}};
}

// The weights of a case, and a call with them.
struct LocalCall : Call {
  Extents kernel;
  std::vector<double> weight, bias;

  explicit LocalCall(const Case& c)
      : Call(c.problem, 1),
        kernel(c.kernel),
        weight(random_values(static_cast<std::size_t>(channels() * taps()), 11)),
        bias(random_values(static_cast<std::size_t>(channels()), 12)) {}
  std::int64_t channels() const { return problem.heads * problem.dv; }
  std::int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  ForwardInputs with_local() const {
    ForwardInputs in = inputs();
    in.local = {.weight = TensorView::of(weight.data(), {channels(), taps()}),
                .bias = TensorView::of(bias.data(), {channels()}),
                .kernel = kernel};
    return in;
  }
};

// By scattering: every token of v adds to the outputs around it.
std::vector<double> convolution(const LocalCall& call, const Extents& grid) {
  const Problem& p = call.problem;
  const std::int64_t tokens = p.layout.tokens();
  std::vector<double> sums(call.v.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = call.bias[i % static_cast<std::size_t>(call.channels())];
  }
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t from = 0; from < tokens; ++from) {
      std::int64_t tap = 0;
      for (std::int64_t a = 0; a < call.kernel[0]; ++a) {
        for (std::int64_t y = 0; y < call.kernel[1]; ++y) {
          for (std::int64_t x = 0; x < call.kernel[2]; ++x, ++tap) {
            const std::int64_t to_a = from / grid[2] / grid[1] - a + call.kernel[0] / 2;
            const std::int64_t to_y = from / grid[2] % grid[1] - y + call.kernel[1] / 2;
            const std::int64_t to_x = from % grid[2] - x + call.kernel[2] / 2;
            if (to_a < 0 || to_a >= grid[0] || to_y < 0 || to_y >= grid[1] || to_x < 0 ||
                to_x >= grid[2]) {
              continue;
            }
            const std::int64_t to = (to_a * grid[1] + to_y) * grid[2] + to_x;
            for (std::int64_t c = 0; c < call.channels(); ++c) {
              sums[(b * tokens + to) * call.channels() + c] +=
                  call.weight[c * call.taps() + tap] *
                  call.v[(b * tokens + from) * call.channels() + c];
            }
          }
        }
      }
    }
  }
  return sums;
}

Plan reference(const Problem& problem) { return plan(problem, {.implementation = "reference"}); }

TEST(Local, TheReferenceAddsTheConvolutionOfTheValues) {
  for (const Case& c : {picture(), video()}) {
    LocalCall call(c);
    ASSERT_TRUE(reference(call.problem).adds_local(c.kernel));
    std::vector<double> wanted = convolution(call, c.grid);
    const std::vector<double> plain = call.forward();
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += plain[i];
    forward(reference(call.problem), call.with_local(), {.o = call.output_view(call.o)});
    EXPECT_LT(relative_error(call.o, wanted), kRounding) << call.problem.to_string();
  }
}

TEST(Local, TheBiasMayBeLeftOut) {
  LocalCall call(picture());
  std::fill(call.bias.begin(), call.bias.end(), 0.0);
  forward(reference(call.problem), call.with_local(), {.o = call.output_view(call.o)});
  const std::vector<double> with_zeros = call.o;
  ForwardInputs in = call.with_local();
  in.local.bias = {};
  forward(reference(call.problem), in, {.o = call.output_view(call.o)});
  EXPECT_EQ(call.o, with_zeros);
}

TEST(Local, IsForOneGridOfTheSameTokens) {
  const Extents three{1, 3, 3};
  Problem p = picture().problem;
  EXPECT_TRUE(reference(p).adds_local(three));
  EXPECT_FALSE(reference(p).adds_local({1, 3, 2}));
  EXPECT_FALSE(reference(p).adds_local({3, 3, 3}));
  p.layout_k = BlockLayout::grid({6, 7}, {.block = {2, 4}});
  p.normalizer = Normalizer::exact;
  EXPECT_FALSE(reference(p).adds_local(three));
  p.layout_k.reset();
  p.layout = BlockLayout::packed_grids({{4, 4}, {4, 4}}, {.block = {2, 2}});
  EXPECT_FALSE(reference(p).adds_local(three));
  p.layout = BlockLayout::sequence(16, {.block = {4}});
  EXPECT_FALSE(reference(p).adds_local(three));
}

// The error of a call whose local term was changed; the output must stay untouched.
template <typename Change>
std::string local_error(Change&& change) {
  LocalCall call(picture());
  ForwardInputs in = call.with_local();
  change(in.local);
  const std::string message = error_of(
      [&] { forward(reference(call.problem), in, {.o = call.output_view(call.o)}); });
  for (const double x : call.o) EXPECT_TRUE(std::isnan(x)) << "written before the check";
  return message;
}

TEST(Local, WeightsAreChecked) {
  EXPECT_EQ(local_error([](LocalTerm& local) { local.weight.shape[1] = 8; }),
            "[mhla.forward] local.weight: expected row-major [15, 9], got [15, 8]");
  EXPECT_EQ(local_error([](LocalTerm& local) { local.weight.strides[0] = 10; }),
            "[mhla.forward] local.weight: expected row-major [15, 9], got [15, 9]");
  EXPECT_EQ(local_error([](LocalTerm& local) { local.bias.dtype = DType::f32; }),
            "[mhla.forward] local.bias: expected f64, got f32");
  EXPECT_EQ(local_error([](LocalTerm& local) { local.bias.shape[0] = 14; }),
            "[mhla.forward] local.bias: expected row-major [15], got [14]");
  EXPECT_EQ(local_error([](LocalTerm& local) { local.weight = {}; }),
            "[mhla.forward] local.bias: given without local.weight");
  const std::string even = local_error([](LocalTerm& local) { local.kernel = {1, 3, 4}; });
  EXPECT_NE(even.find("reference does not add a convolution of 1 x 3 x 4"), std::string::npos)
      << even;
}

TEST(Local, AnImplementationWithoutItSaysSo) {
  LocalCall call(picture());
  Problem problem = call.problem;
  problem.dtype = DType::f32;
  for (const std::string& name : implementations()) {
    if (name.rfind("cpu.", 0) != 0) continue;
    EXPECT_FALSE(plan(problem, {.implementation = name}).adds_local(call.kernel)) << name;
  }
}

}  // namespace
}  // namespace mhla
