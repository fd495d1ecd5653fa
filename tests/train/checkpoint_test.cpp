// Folders of checkpoints: complete or absent, the last few kept, restored exactly.
#include "train/checkpoint.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "mhla/error.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

class CheckpointsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "mhla-train-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static CheckpointContent content(double value) {
    return {.files = {{"model", {{"w", at::full({3}, value)}}}}, .numbers = {{"epoch", value}}};
  }

  std::string folder_;
};

TEST_F(CheckpointsTest, TheNewestIsFoundAndOnlyTheLastFewStay) {
  Checkpoints checkpoints(folder_, 2);
  EXPECT_FALSE(Checkpoints::latest(folder_));
  for (const int step : {5, 20, 100}) checkpoints.save(step, content(step));
  const auto newest = Checkpoints::latest(folder_);
  ASSERT_TRUE(newest);
  EXPECT_EQ(step_of(*newest), 100);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
  const at::Tensor weight = at::zeros({3});
  restore(*newest, "model", {{"w", weight}});
  EXPECT_EQ(weight.min().item<double>(), 100.0);
}

TEST_F(CheckpointsTest, WhatAKilledProcessLeftIsNoCheckpointAndGoes) {
  fs::create_directories(folder_ + "/.tmp-step-00000900");
  fs::create_directories(folder_ + "/.old-step-00000800");
  fs::create_directories(folder_ + "/step-abc");
  std::ofstream(folder_ + "/step-00000999") << "a file";
  EXPECT_FALSE(Checkpoints::latest(folder_));
  const Checkpoints checkpoints(folder_, 1);
  EXPECT_FALSE(fs::exists(folder_ + "/.tmp-step-00000900"));
  EXPECT_FALSE(fs::exists(folder_ + "/.old-step-00000800"));
  EXPECT_TRUE(fs::exists(folder_ + "/step-abc"));
}

TEST_F(CheckpointsTest, ADiskThatRefusesIsOneErrorAndTheLastStays) {
  Checkpoints checkpoints(folder_, 2);
  checkpoints.save(1, content(1));
  std::ofstream(folder_ + "/.tmp-step-00000002") << "in the way";
  try {
    checkpoints.save(2, content(2));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("the last checkpoint is"), std::string::npos);
  }
  EXPECT_EQ(step_of(*Checkpoints::latest(folder_)), 1);
}

TEST_F(CheckpointsTest, TensorsOfAnotherModelAreRefused) {
  Checkpoints checkpoints(folder_, 1);
  checkpoints.save(1, content(1));
  const std::string newest = *Checkpoints::latest(folder_);
  EXPECT_THROW(restore(newest, "model", {{"v", at::zeros({3})}}), Error);
  EXPECT_THROW(restore(newest, "model", {{"w", at::zeros({4})}}), Error);
  EXPECT_THROW(restore(newest, "model", {}), Error);
  EXPECT_THROW(restore(newest, "optimizer", {}), Error);
  EXPECT_THROW(Checkpoints("/dev/null/x", 1), Error);
  EXPECT_THROW(Checkpoints(folder_, 0), Error);
}

}  // namespace
}  // namespace mhla::train
