// Learning rates against the formula of the recipes, written out.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "mhla/error.h"

namespace mhla::train {
namespace {

constexpr double kPi = std::numbers::pi;

// The authors' script: per update, 10 epochs of warm-up from 1e-6 inside 200, down to 0.
TEST(Schedule, CosineCountsFromStepZeroAlsoAfterTheWarmUp) {
  ScheduleOptions options{.warmup_epochs = 10};
  const Schedule schedule(options, 1e-3, 100, 200, 0);
  EXPECT_EQ(schedule.total_steps(), 20000);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 1e-6);
  EXPECT_DOUBLE_EQ(schedule.lr(500), 1e-6 + 500 * (1e-3 - 1e-6) / 1000);
  EXPECT_DOUBLE_EQ(schedule.lr(1000), 0.5e-3 * (1 + std::cos(kPi * 1000 / 20000.0)));
  EXPECT_DOUBLE_EQ(schedule.lr(15000), 0.5e-3 * (1 + std::cos(kPi * 0.75)));
  EXPECT_NEAR(schedule.lr(19999), 0.0, 1e-10);
}

// DeiT's: once an epoch, 5 epochs of warm-up, at least 1e-5, 10 epochs more at that rate.
TEST(Schedule, ByTheEpochTheRateIsAStaircaseWithACoolDown) {
  ScheduleOptions options{
      .unit = "epoch", .warmup_epochs = 5, .min_lr = 1e-5, .cooldown_epochs = 10};
  const Schedule schedule(options, 1e-3, 7, 300, 0);
  EXPECT_EQ(schedule.total_steps(), 310 * 7);
  EXPECT_DOUBLE_EQ(schedule.lr(6), 1e-6);
  EXPECT_DOUBLE_EQ(schedule.lr(7), 1e-6 + (1e-3 - 1e-6) / 5);
  const double at_100 = 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + std::cos(kPi * 100 / 300.0));
  EXPECT_DOUBLE_EQ(schedule.lr(700), at_100);
  EXPECT_DOUBLE_EQ(schedule.lr(706), at_100);
  EXPECT_DOUBLE_EQ(schedule.lr(300 * 7), 1e-5);
  EXPECT_DOUBLE_EQ(schedule.lr(310 * 7 - 1), 1e-5);
}

// Language models: the cosine begins after the warm-up and ends at a tenth.
TEST(Schedule, TheCosineMayBeginAfterTheWarmUp) {
  ScheduleOptions options{
      .warmup_steps = 100, .warmup_lr = 0, .min_lr = 3e-5, .after_warmup = true};
  const Schedule schedule(options, 3e-4, 10, 1, 1100);
  EXPECT_EQ(schedule.total_steps(), 1100);
  EXPECT_DOUBLE_EQ(schedule.lr(100), 3e-4);
  EXPECT_DOUBLE_EQ(schedule.lr(600), 3e-4 * (0.9 * 0.5 + 0.1));
}

TEST(Schedule, ConstantStaysAndWsdFallsAtTheEnd) {
  const Schedule constant({.name = "constant"}, 1e-4, 10, 3, 0);
  EXPECT_DOUBLE_EQ(constant.lr(0), 1e-4);
  EXPECT_DOUBLE_EQ(constant.lr(29), 1e-4);
  const Schedule wsd({.name = "wsd", .warmup_steps = 10, .warmup_lr = 0}, 1.0, 100, 1, 0);
  EXPECT_DOUBLE_EQ(wsd.lr(5), 0.5);
  EXPECT_DOUBLE_EQ(wsd.lr(10), 1.0);
  EXPECT_DOUBLE_EQ(wsd.lr(80), 1.0);
  EXPECT_DOUBLE_EQ(wsd.lr(90), 0.5);
  EXPECT_NEAR(wsd.lr(99), 0.05, 1e-12);
}

TEST(Schedule, ContradictionsAreRefused) {
  EXPECT_THROW(Schedule({.warmup_epochs = 1, .warmup_steps = 1}, 1, 1, 1, 0), Error);
  EXPECT_THROW(Schedule({.warmup_epochs = -1}, 1, 1, 1, 0), Error);
  EXPECT_THROW(Schedule({.decay_share = 2}, 1, 1, 1, 0), Error);
}

}  // namespace
}  // namespace mhla::train
