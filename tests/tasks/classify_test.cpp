// Losses and hits against values computed by hand; mixup and CutMix against their definition.
#include "tasks/classify.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace mhla::tasks {
namespace {

using at::Tensor;

Tensor longs(std::vector<std::int64_t> values) { return at::tensor(values); }

TEST(ClassificationLoss, SmoothedHardTargetsAreTheirSoftForm) {
  const Tensor logits = at::randn({6, 5}), target = longs({0, 1, 2, 3, 4, 0});
  const Tensor soft = mixed({}, at::randn({6, 3, 4, 4}), target, 5, 0.1).second;
  EXPECT_NEAR(soft[0][0].item<double>(), 0.92, 1e-6);
  EXPECT_NEAR(soft[0][1].item<double>(), 0.02, 1e-6);
  const double hard = classification_loss(logits, target, 0.1).item<double>();
  EXPECT_NEAR(hard, classification_loss(logits, soft, 0.1).item<double>(), 1e-5);
  const Tensor plain = -(at::one_hot(target, 5) * at::log_softmax(logits, 1)).sum(1).mean();
  EXPECT_NEAR(classification_loss(logits, target, 0.0).item<double>(), plain.item<double>(), 1e-5);
}

TEST(Mixup, PicturesAndTargetsAreMixedWithTheBatchReversed) {
  const Tensor image = at::randn({4, 3, 6, 6}), target = longs({0, 1, 2, 3});
  const Mix mix{.lambda = 0.7};
  const auto [picture, soft] = mixed(mix, image, target, 10, 0.1);
  EXPECT_LT((picture[0] - (0.7 * image[0] + 0.3 * image[3])).abs().max().item<double>(), 1e-6);
  EXPECT_NEAR(soft[0][0].item<double>(), 0.7 * 0.91 + 0.3 * 0.01, 1e-6);
  EXPECT_NEAR(soft[0][3].item<double>(), 0.3 * 0.91 + 0.7 * 0.01, 1e-6);
  EXPECT_LT((soft.sum(1) - 1).abs().max().item<double>(), 1e-5);
}

TEST(Cutmix, ABoxComesFromTheOtherPictureAndTheShareIsItsArea) {
  const Tensor image = at::randn({2, 3, 8, 8}), target = longs({0, 1});
  const Mix mix{.lambda = 1 - 6.0 / 64, .box = true, .top = 1, .bottom = 4, .left = 2, .right = 4};
  const Tensor before = image.clone();
  const auto [picture, soft] = mixed(mix, image, target, 2, 0.0);
  EXPECT_TRUE(image.equal(before));
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 8; ++x) {
      const bool inside = y >= 1 && y < 4 && x >= 2 && x < 4;
      EXPECT_EQ(picture[0][0][y][x].item<float>(), image[inside ? 1 : 0][0][y][x].item<float>());
    }
  }
  EXPECT_NEAR(soft[0][1].item<double>(), 6.0 / 64, 1e-6);
}

TEST(DrawMix, FollowsItsProbabilitiesAndItsSeed) {
  const MixupOptions options{.mixup = 0.2, .cutmix = 1.0, .probability = 0.8};
  int boxes = 0, plain = 0;
  double lambda = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const Mix mix = draw_mix(options, 32, 16, 7, static_cast<std::uint64_t>(i), 0);
    boxes += mix.box;
    plain += !mix.box && mix.lambda == 1.0;
    lambda += mix.box ? 0 : mix.lambda;
    EXPECT_GE(mix.lambda, 0.0);
    EXPECT_LE(mix.lambda, 1.0);
    if (!mix.box) continue;
    const auto area = static_cast<double>((mix.bottom - mix.top) * (mix.right - mix.left));
    EXPECT_NEAR(mix.lambda, 1 - area / (32 * 16), 1e-12);
    EXPECT_LE(mix.bottom, 32);
    EXPECT_LE(mix.right, 16);
  }
  // Four standard deviations of these counts are below 0.035.
  EXPECT_NEAR(boxes / double{kDraws}, 0.4, 0.035);
  EXPECT_NEAR(plain / double{kDraws}, 0.2, 0.035);
  EXPECT_NEAR((lambda - plain) / (kDraws - boxes - plain), 0.5, 0.06);  // Beta is symmetric
  const Mix a = draw_mix(options, 32, 32, 1, 2, 0), b = draw_mix(options, 32, 32, 1, 2, 0);
  EXPECT_EQ(a.lambda, b.lambda);
  EXPECT_NE(a.lambda, draw_mix(options, 32, 32, 1, 2, 1).lambda);
  EXPECT_EQ(draw_mix({}, 32, 32, 1, 2, 0).lambda, 1.0);
}

TEST(Hits, CountTopOneTopFiveAndConfusion) {
  Hits hits(6, c10::kCPU);
  // Six classes; the best is the largest number.
  const Tensor logits = at::tensor({5.0f, 4.0f, 3.0f, 2.0f, 1.0f, 0.0f}).expand({4, 6});
  hits.add(logits, longs({0, 1, 4, 5}));
  hits.add(logits.narrow(0, 0, 2), longs({0, 5}));
  const Evaluation result = hits.report(true);
  EXPECT_NEAR(result.numbers[0].second, 100.0 * 2 / 6, 1e-9);
  EXPECT_NEAR(result.numbers[1].second, 100.0 * 4 / 6, 1e-9);
  const auto json = nlohmann::json::parse(result.json);
  EXPECT_EQ(json["samples"], 6);
  EXPECT_EQ(json["confusion"][0][0], 2);
  EXPECT_EQ(json["confusion"][5][0], 2);
  EXPECT_EQ(json["per_class"][0]["recall"], 100.0);
  EXPECT_NEAR(json["per_class"][0]["precision"].get<double>(), 100.0 * 2 / 6, 1e-9);
  EXPECT_TRUE(json["per_class"][2]["recall"].is_null());
}

}  // namespace
}  // namespace mhla::tasks
