// Reference gradients against central finite differences in f64, every input of every form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "support/tensors.h"

namespace mhla {
namespace {

using test::Call;

double loss(Call& call) {
  const auto& o = call.forward();
  double sum = 0;
  for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * call.d_o[i];
  return sum;
}

// Step 1e-5: truncation h^2 and cancellation eps/h are both near 1e-10 for values of order one.
constexpr double kStep = 1e-5;
constexpr double kTolerance = 2e-8;

void expect_matches_differences(Call& call, std::vector<double>& input,
                                const std::vector<double>& gradient, const char* name) {
  std::vector<double> numeric(input.size());
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double saved = input[i];
    input[i] = saved + kStep;
    const double above = loss(call);
    input[i] = saved - kStep;
    numeric[i] = (above - loss(call)) / (2 * kStep);
    input[i] = saved;
  }
  EXPECT_LT(test::relative_error(gradient, numeric), kTolerance)
      << name << " of " << call.problem.to_string();
}

// Values within a step of the kink of relu have no difference quotient.
void avoid_kink(std::vector<double>& values) {
  for (double& x : values) {
    if (std::abs(x) < 0.01) x += 0.05;
  }
}

void check_all(const Problem& problem, std::uint64_t seed) {
  Call call(problem, seed);
  for (auto* input : {&call.q, &call.k, &call.q_den, &call.k_den}) avoid_kink(*input);
  call.backward();
  expect_matches_differences(call, call.q, call.d_q, "d_q");
  expect_matches_differences(call, call.k, call.d_k, "d_k");
  expect_matches_differences(call, call.v, call.d_v, "d_v");
  expect_matches_differences(call, call.mixing, call.d_mixing, "d_mixing");
  expect_matches_differences(call, call.q_den, call.d_q_den, "d_q_den");
  expect_matches_differences(call, call.k_den, call.d_k_den, "d_k_den");
}

using Form = std::tuple<Mask, Normalizer, FeatureMap, bool>;
class EveryForm : public testing::TestWithParam<Form> {};

std::string form_name(const testing::TestParamInfo<Form>& info) {
  const auto [mask, normalizer, map, separate] = info.param;
  return std::string(name(mask)) + "_" + name(normalizer) + "_" + name(map) +
         (separate ? "_separate" : "");
}

TEST_P(EveryForm, GradientsMatchFiniteDifferencesOnRaggedPackedAndGridLayouts) {
  const auto [mask, normalizer, map, separate] = GetParam();
  Problem problem{.batch = 2,
                  .heads = 2,
                  .dk = 3,
                  .dv = 2,
                  .layout = BlockLayout::sequence(7, {.block = {3}}),
                  .mask = mask,
                  .normalizer = normalizer,
                  .feature_map = map,
                  .scale = 0.7,
                  .eps = 0.25,  // keeps denominators of the signed maps away from zero
                  .separate_denominator = separate,
                  .dtype = DType::f64};
  if (map == FeatureMap::identity && normalizer != Normalizer::none && !separate) {
    problem.eps = 40.0;  // identity scores have either sign
  }
  check_all(problem, 11);
  problem.layout = BlockLayout::packed({0, 3, 3, 8}, {.block = {2}});
  problem.mixing_per_head = true;
  check_all(problem, 12);
  problem.batch = 1;
  problem.layout = BlockLayout::grid({3, 5}, {.block = {2, 2}});
  check_all(problem, 13);
  problem.layout = BlockLayout::grid({2, 2, 3}, {.blocks = {2, 1, 2}});
  check_all(problem, 14);
}

std::vector<Form> every_form() {
  std::vector<Form> forms;
  for (const auto mask : {Mask::none, Mask::causal, Mask::block_causal}) {
    for (const auto map :
         {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1, FeatureMap::identity}) {
      for (const auto normalizer : {Normalizer::exact, Normalizer::shared_position}) {
        for (const bool separate : {false, true})
          forms.emplace_back(mask, normalizer, map, separate);
      }
      forms.emplace_back(mask, Normalizer::none, map, false);
    }
  }
  return forms;
}

INSTANTIATE_TEST_SUITE_P(Gradients, EveryForm, testing::ValuesIn(every_form()), form_name);

TEST(Gradients, OfCrossAttentionMatchFiniteDifferences) {
  for (const auto normalizer : {Normalizer::exact, Normalizer::none}) {
    check_all({.batch = 1,
               .heads = 2,
               .dk = 3,
               .dv = 4,
               .layout = BlockLayout::grid({3, 3}, {.block = {2, 2}}),
               .layout_k = BlockLayout::sequence(5, {.block = {2}}),
               .normalizer = normalizer,
               .feature_map = FeatureMap::elu1,
               .dtype = DType::f64},
              21);
  }
}

TEST(Gradients, AskedForOneByOneEqualThoseAskedForTogether) {
  Call call({.heads = 2,
             .dk = 3,
             .dv = 2,
             .layout = BlockLayout::sequence(7, {.block = {3}}),
             .mask = Mask::causal,
             .dtype = DType::f64},
            31);
  call.backward();
  auto alone = call.d_k;
  std::fill(alone.begin(), alone.end(), 0.0);
  backward(plan(call.problem), call.backward_inputs(), {.d_k = call.key_view(alone)});
  EXPECT_EQ(alone, call.d_k);
}

}  // namespace
}  // namespace mhla
