// Modules loaded from checkpoints by name, and saved to them.
#include "io/torch/weights.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>

#include "mhla/error.h"

namespace mhla::test {
namespace {

using io::LoadReport;
using io::Shape;
using io::StateDict;

struct Network : torch::nn::Module {
  Network() {
    register_module("fc", fc);
    register_module("norm", norm);
  }
  torch::nn::Linear fc{torch::nn::LinearOptions(3, 2)};
  torch::nn::BatchNorm1d norm{torch::nn::BatchNormOptions(2)};
};

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mhla-io-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

StateDict copy_of(const torch::nn::Module& module) {
  StateDict copy;
  for (const auto& [name, value] : io::state_dict(module)) copy[name] = value.detach().clone();
  return copy;
}

void expect_equal(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) EXPECT_TRUE(value.equal(b.at(name))) << name;
}

template <typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Weights, AModuleSavedAndLoadedIsTheSame) {
  Network one, two;
  for (const std::uint64_t limit : {0, 20}) {
    const auto written = io::save(path("model.safetensors"), one,
                                  {.metadata = {}, .max_file_bytes = limit});
    const LoadReport report = io::load(two, written.front());
    EXPECT_EQ(report.loaded.size(), 7u);  // with the statistics of the normalisation
    EXPECT_TRUE(report.complete());
    expect_equal(copy_of(one), copy_of(two));
    EXPECT_TRUE(two.fc->weight.requires_grad());
  }
}

TEST_F(Weights, AStrictLoadThatFailsChangesNothing) {
  Network network;
  StateDict file = copy_of(network);
  for (auto& [name, value] : file) value.add_(1);
  file["fc.wieght"] = file["fc.weight"];
  file.erase("fc.weight");
  const StateDict before = copy_of(network);
  const std::string error = error_of([&] { io::load(network, file, {.source = "a.pth"}); });
  EXPECT_NE(error.find("'a.pth': 6 of 7 tensors loaded"), std::string::npos) << error;
  EXPECT_NE(error.find("'fc.weight'  (the file has 'fc.wieght')"), std::string::npos) << error;
  expect_equal(before, copy_of(network));
  const LoadReport report = io::load(network, file, {.strict = false});
  EXPECT_EQ(report.missing, std::vector<std::string>{"fc.weight"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"fc.wieght"});
  EXPECT_TRUE(network.fc->bias.equal(file["fc.bias"]));
}

TEST_F(Weights, RenamesIgnoresKeepsAndConverts) {
  Network network;
  StateDict file;
  for (const auto& [name, value] : copy_of(network)) {
    if (name != "norm.bias") file["old." + name] = (value + 1).to(at::kDouble);
  }
  file["head"] = at::ones({1});
  const LoadReport report = io::load(
      network, file,
      {.rename = [](const std::string& n) { return n == "head" ? "" : n.substr(4); },
       .may_be_missing = [](const std::string& n) { return n == "norm.bias"; }});
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(report.ignored, std::vector<std::string>{"head"});
  EXPECT_EQ(report.kept, std::vector<std::string>{"norm.bias"});
  EXPECT_NE(report.text().find("tensors converted from Double to Float"), std::string::npos);
  EXPECT_TRUE(network.fc->weight.equal(file["old.fc.weight"].to(at::kFloat)));
  const std::string error = error_of(
      [&] { io::load(network, file, {.rename = [](const std::string&) { return "fc.bias"; }}); });
  EXPECT_NE(error.find("would both become 'fc.bias'"), std::string::npos) << error;
}

TEST_F(Weights, ReshapesAxesOfOneAloneAndTheRestByTheModelsRule) {
  Network network;
  StateDict file = copy_of(network);
  file["fc.weight"] = at::arange(6, at::kFloat).reshape({2, 3, 1, 1});
  const LoadReport report = io::load(network, file);
  ASSERT_EQ(report.reshaped.size(), 1u);
  EXPECT_EQ(report.reshaped[0].stored, (Shape{2, 3, 1, 1}));
  EXPECT_TRUE(network.fc->weight.equal(at::arange(6, at::kFloat).reshape({2, 3})));

  file["fc.weight"] = at::ones({2, 5});
  const std::string error = error_of([&] { io::load(network, file); });
  EXPECT_NE(error.find("'fc.weight': [2, 5] -> [2, 3]"), std::string::npos) << error;
  const LoadReport cut = io::load(network, file,
                                  {.reshape = [](const std::string&, const at::Tensor& stored,
                                                 const Shape& wanted, std::string& how) {
                                    how = "cut";
                                    return stored.narrow(1, 0, wanted[1]);
                                  }});
  EXPECT_EQ(cut.reshaped.at(0).how, "cut");
  EXPECT_TRUE(network.fc->weight.equal(at::ones({2, 3})));
}

TEST_F(Weights, TensorsOutliveTheirCheckpointAndNeverChangeTheFile) {
  io::save(path("m.safetensors"), StateDict{{"x", at::arange(4, at::kFloat)}});
  at::Tensor x;
  {
    const io::Checkpoint file = io::Checkpoint::open(path("m.safetensors"));
    x = io::to_tensor(file, file.at("x"));
  }
  EXPECT_TRUE(x.equal(at::arange(4, at::kFloat)));
  x.add_(1);
  EXPECT_TRUE(x.equal(at::arange(4, at::kFloat) + 1));
  const io::Checkpoint again = io::Checkpoint::open(path("m.safetensors"));
  EXPECT_TRUE(io::to_tensor(again, again.at("x")).equal(at::arange(4, at::kFloat)));
}

TEST_F(Weights, RefusesBoolsThatAreNone) {
  const std::string header = R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  const std::uint64_t length = header.size();
  std::ofstream(path("b"), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof length) << header << "\x01\x02";
  const io::Checkpoint file = io::Checkpoint::open(path("b"));
  EXPECT_NE(error_of([&] { io::state_dict(file); }).find("neither 0 nor 1"), std::string::npos);
}

}  // namespace
}  // namespace mhla::test
