// One update: optimisers against their formulas in f64, what is decayed, clipping, loss scaling,
// averaged weights.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>

#include "mhla/error.h"
#include "models/model.h"
#include "train/ema.h"
#include "train/optimizer.h"
#include "train/precision.h"

namespace mhla::train {
namespace {

using at::Tensor;

class Net : public torch::nn::Module {
 public:
  Net() {
    register_parameter("weight", at::randn({4, 3}));
    register_parameter("bias", at::randn({4}));
    register_parameter("pos_embed", at::randn({1, 5, 2}));
    register_parameter("attn_mixing", at::randn({2, 2}));
    const auto inner = register_module("inner", std::make_shared<torch::nn::Module>());
    inner->register_parameter("bias", at::randn({2, 2}));
    register_parameter("frozen", at::randn({2, 2}), /*requires_grad=*/false);
  }
};

TEST(Parameters, BiasesVectorsAndNamedOnesAreNotDecayed) {
  const Net net;
  std::map<std::string, bool> decayed;
  for (const Parameter& each : trained_parameters(net, {"pos_embed"})) {
    decayed[each.name] = each.decayed;
  }
  const std::map<std::string, bool> wanted = {{"weight", true},
                                              {"bias", false},
                                              {"pos_embed", false},
                                              {"attn_mixing", true},
                                              {"inner.bias", false}};
  EXPECT_EQ(decayed, wanted);
}

std::vector<Parameter> two_parameters() {
  const Tensor a = at::randn({33}).set_requires_grad(true);
  const Tensor b = at::randn({5, 7}).set_requires_grad(true);
  return {{"a", a, false}, {"b", b, true}};
}

TEST(AdamW, FollowsItsFormula) {
  const OptimizerOptions options{.weight_decay = 0.1, .betas = {0.8, 0.95}, .eps = 1e-6};
  const auto parameters = two_parameters();
  const auto optimizer = make_optimizer(options, parameters);
  std::vector<Tensor> value, mean(2), square(2);
  for (const Parameter& each : parameters) value.push_back(each.value.detach().to(at::kDouble));
  const at::NoGradGuard no_gradient;
  for (int step = 1; step <= 5; ++step) {
    const double lr = 0.01 * step;
    for (std::size_t i = 0; i < 2; ++i) {
      const Tensor gradient = at::randn(parameters[i].value.sizes());
      parameters[i].value.mutable_grad() = gradient;
      const Tensor g = gradient.to(at::kDouble);
      mean[i] = step == 1 ? 0.2 * g : 0.8 * mean[i] + 0.2 * g;
      square[i] = step == 1 ? 0.05 * g * g : 0.95 * square[i] + 0.05 * g * g;
      if (i == 1) value[i] = value[i] * (1 - lr * 0.1);
      const Tensor root = (square[i] / (1 - std::pow(0.95, step))).sqrt() + 1e-6;
      value[i] = value[i] - lr * (mean[i] / (1 - std::pow(0.8, step))) / root;
    }
    optimizer->set_lr(lr);
    optimizer->step({});
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_LT((parameters[i].value - value[i]).abs().max().item<double>(), 1e-5) << step;
    }
  }
}

TEST(Sgd, FollowsItsFormula) {
  for (const bool nesterov : {false, true}) {
    const OptimizerOptions options{
        .name = "sgd", .weight_decay = 0.1, .momentum = 0.9, .nesterov = nesterov};
    const auto parameters = two_parameters();
    const auto optimizer = make_optimizer(options, parameters);
    std::vector<Tensor> value, momentum(2);
    for (const Parameter& each : parameters) value.push_back(each.value.detach().to(at::kDouble));
    const at::NoGradGuard no_gradient;
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < 2; ++i) {
        const Tensor gradient = at::randn(parameters[i].value.sizes());
        parameters[i].value.mutable_grad() = gradient;
        Tensor g = gradient.to(at::kDouble);
        if (i == 1) g = g + 0.1 * value[i];
        momentum[i] = step == 0 ? g : 0.9 * momentum[i] + g;
        value[i] = value[i] - 0.02 * (nesterov ? g + 0.9 * momentum[i] : momentum[i]);
      }
      optimizer->set_lr(0.02);
      optimizer->step({});
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_LT((parameters[i].value - value[i]).abs().max().item<double>(), 1e-5);
      }
    }
  }
}

TEST(Optimizer, AParameterWithoutAGradientStays) {
  const auto parameters = two_parameters();
  const auto optimizer = make_optimizer({}, parameters);
  const Tensor before = parameters[0].value.detach().clone();
  const at::NoGradGuard no_gradient;
  parameters[1].value.mutable_grad() = at::randn({5, 7});
  optimizer->set_lr(0.1);
  optimizer->step({});
  EXPECT_TRUE(parameters[0].value.equal(before));
}

TEST(Optimizer, UnknownNamesAndWrongBetasAreRefused) {
  EXPECT_THROW(make_optimizer({.name = "lion"}, {}), Error);
  EXPECT_THROW(make_optimizer({.betas = {0.9}}, {}), Error);
  EXPECT_THROW(make_optimizer({.name = "sgd", .momentum = 0, .nesterov = true}, {}), Error);
}

TEST(Clipping, TheNormOfAllGradientsTogetherIsBounded) {
  const auto parameters = two_parameters();
  parameters[0].value.mutable_grad() = at::full({33}, 3.0);
  parameters[1].value.mutable_grad() = at::full({5, 7}, 4.0);
  const std::vector<Tensor> gradients = {parameters[0].value.grad(), parameters[1].value.grad()};
  const double norm = std::sqrt(33 * 9.0 + 35 * 16.0);
  EXPECT_NEAR(clip_gradients(gradients, 0).item<double>(), norm, 1e-3);
  EXPECT_EQ(parameters[0].value.grad()[0].item<double>(), 3.0);
  EXPECT_NEAR(clip_gradients(gradients, 2.0).item<double>(), norm, 1e-3);
  EXPECT_NEAR(clip_gradients(gradients, 0).item<double>(), 2.0, 1e-4);
  EXPECT_NEAR(clip_gradients(gradients, 5.0).item<double>(), 2.0, 1e-4);  // below: untouched
  EXPECT_NEAR(clip_gradients(gradients, 0).item<double>(), 2.0, 1e-4);
}

TEST(LossScale, AStepThatOverflowsIsLeftOutAndTheScaleHalved) {
  LossScale scale(true, 1024.0, c10::kCPU);
  EXPECT_EQ(scale.scaled(at::ones({})).item<double>(), 1024.0);
  const auto parameters = two_parameters();
  const auto optimizer = make_optimizer({}, parameters);
  const Tensor before = parameters[1].value.detach().clone();
  const at::NoGradGuard no_gradient;
  parameters[0].value.mutable_grad() = at::full({33}, 1.0);
  parameters[1].value.mutable_grad() = at::full({5, 7}, std::numeric_limits<float>::infinity());
  const auto gradients = [&] {
    return std::vector<Tensor>{parameters[0].value.grad(), parameters[1].value.grad()};
  };
  optimizer->set_lr(0.1);
  optimizer->step(scale.unscale(gradients()));
  scale.update();
  EXPECT_TRUE(parameters[1].value.equal(before));
  EXPECT_EQ(optimizer->state().at("step").item<double>(), 0.0);
  EXPECT_EQ(scale.state().at("loss_scale").item<double>(), 512.0);

  parameters[0].value.mutable_grad() = at::full({33}, 512.0);
  parameters[1].value.mutable_grad() = at::full({5, 7}, 1024.0);
  const Tensor found = scale.unscale(gradients());
  EXPECT_EQ(parameters[1].value.grad()[0][0].item<double>(), 2.0);
  optimizer->set_lr(0.1);
  optimizer->step(found);
  scale.update();
  EXPECT_FALSE(parameters[1].value.equal(before));
  EXPECT_EQ(optimizer->state().at("step").item<double>(), 1.0);
  EXPECT_EQ(scale.state().at("loss_scale").item<double>(), 512.0);
}

TEST(LossScale, OffItChangesNothing) {
  LossScale scale(false, 1024.0, c10::kCPU);
  EXPECT_EQ(scale.scaled(at::ones({})).item<double>(), 1.0);
  EXPECT_FALSE(scale.unscale({at::ones({2})}).defined());
  scale.update();
  EXPECT_TRUE(scale.state().empty());
}

TEST(Ema, CopiesBeforeItsStartAndAveragesFromThenOn) {
  const auto make = [] { return models::create_model("tiny-deit", "depth=1"); };
  const auto model = make();
  Ema ema({.decay = 0.75, .start = 2}, make(), *model);
  const auto weight = [](const models::Model& m) {
    return *m.named_parameters().find("head.weight");
  };
  const at::NoGradGuard no_gradient;
  weight(*model).fill_(1.0);
  ema.update(1);
  EXPECT_EQ(weight(ema.model()).max().item<double>(), 1.0);
  weight(*model).fill_(2.0);
  ema.update(2);
  EXPECT_EQ(weight(ema.model()).max().item<double>(), 1.25);
  ema.update(3);
  EXPECT_EQ(weight(ema.model()).min().item<double>(), 1.4375);
  EXPECT_FALSE(weight(ema.model()).requires_grad());
  EXPECT_THROW(Ema({.decay = 1.0}, make(), *model), Error);
}

TEST(Autocast, ProductsAreNarrowInsideAndWideOutside) {
  const Tensor a = at::ones({4, 4});
  {
    const Autocast narrow(c10::kCPU, "bf16");
    EXPECT_EQ(a.matmul(a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(a.matmul(a).scalar_type(), at::kFloat);
  const Autocast wide(c10::kCPU, "f32");
  EXPECT_EQ(a.matmul(a).scalar_type(), at::kFloat);
}

TEST(SeedStep, TheSameStepDrawsTheSameNumbers) {
  const auto draw = [](std::uint64_t seed, std::uint64_t step, std::uint64_t process) {
    seed_step(c10::kCPU, seed, step, process);
    return at::randn({8});
  };
  const Tensor first = draw(1, 5, 0);
  EXPECT_TRUE(first.equal(draw(1, 5, 0)));
  EXPECT_FALSE(first.equal(draw(1, 6, 0)));
  EXPECT_FALSE(first.equal(draw(1, 5, 1)));
  EXPECT_FALSE(first.equal(draw(2, 5, 0)));
}

}  // namespace
}  // namespace mhla::train
