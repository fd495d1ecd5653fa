// `mhla convert` of files alone, from outside: no network, no LibTorch.

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program_fixture.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "support/torch_file.h"

namespace {

using mhla::io::Checkpoint;
using mhla::io::ScalarType;
using nlohmann::json;

using mhla::test::Result;
using mhla::test::slurp;

class Convert : public mhla::test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::filesystem::create_directory(path("work"));
    for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = 0.1f * static_cast<float>(i);
    const auto tensor = [&](const char* name, std::size_t at) {
      return mhla::io::Tensor{.name = name,
                              .section = {},
                              .type = ScalarType::f32,
                              .shape = {16, 16},
                              .strides = {16, 1},
                              .data = reinterpret_cast<const char*>(numbers_.data() + at)};
    };
    mhla::io::write_safetensors(in(), {tensor("a", 0), tensor("b", 256), tensor("c", 512)},
                                {.metadata = {{"format", "pt"}, {"note", "kept"}}});
  }

  std::string in() const { return path("in.safetensors"); }
  std::string out(const std::string& name) const { return path("work/" + name); }

  Result run(const std::string& arguments, const std::string& before = "") const {
    return program("convert " + arguments, before);
  }
  void expect_failure(const Result& r, int code, const std::vector<std::string>& parts) const {
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_EQ(r.err.rfind("mhla: error: ", 0), 0u) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    for (const std::string& part : parts) {
      EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
    }
    EXPECT_TRUE(std::filesystem::is_empty(path("work"))) << r.err;
  }

  std::vector<float> numbers_ = std::vector<float>(768);
};

TEST_F(Convert, HalvesAFileAndKeepsItsMetadata) {
  const Result r = run(in() + " " + out("x.safetensors") + " --dtype bf16");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("precision  bf16"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("3 tensors, 1536 bytes"), std::string::npos) << r.out;
  const Checkpoint file = Checkpoint::open(out("x.safetensors"));
  EXPECT_EQ(file.metadata().at("note"), "kept");
  ASSERT_EQ(file.at("b").type, ScalarType::bf16);
  std::vector<std::uint16_t> got(256);
  file.at("b").copy_to(got.data());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(got[i]) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT_NEAR(value, numbers_[256 + i], numbers_[256 + i] * 0x1p-8f);
  }
}

TEST_F(Convert, ACopyIsTheSameFile) {
  ASSERT_EQ(run(in() + " " + out("x.safetensors")).code, 0);
  EXPECT_EQ(slurp(in()), slurp(out("x.safetensors")));
}

TEST_F(Convert, SaysWhatItDidAsJson) {
  const Result r = run(in() + " " + out("x.safetensors") + " --dtype f16 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json document = json::parse(r.out);
  EXPECT_EQ(document["dtype"], "f16");
  EXPECT_EQ(document["tensors"], 3);
  EXPECT_EQ(document["converted"], 3);
  EXPECT_EQ(document["files"], json({out("x.safetensors")}));
}

TEST_F(Convert, SplitsIntoFilesAndReadsThemAgain) {
  std::filesystem::create_directory(out("m"));
  const Result r = run(in() + " " + out("m") + " --file-size 1KiB");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(std::filesystem::exists(out("m/model-00003-of-00003.safetensors")));
  const Result back = run(out("m") + " " + out("one.safetensors"));
  ASSERT_EQ(back.code, 0) << back.err;
  const Checkpoint a = Checkpoint::open(in()), b = Checkpoint::open(out("one.safetensors"));
  for (const auto& tensor : a.tensors()) {
    EXPECT_EQ(std::memcmp(tensor.data, b.at(tensor.name).data, tensor.bytes()), 0);
  }
}

TEST_F(Convert, TakesTheAveragedWeightsOfATrainingCheckpointOrWhatIsAskedFor) {
  namespace p = mhla::test::pickled;
  const auto one = [](const char* key) {
    return p::dict({{"w", p::tensor(p::storage("FloatStorage", key, 2), 0, {2}, {1})}});
  };
  std::ofstream(path("run.pth"), std::ios::binary)
      << mhla::test::torch_file(p::dict({{"model", one("0")},
                                         {"ema", one("1")},
                                         {"opt", p::dict({{"lr", p::integer(7)}, {"m", one("0")}})},
                                         {"epoch", p::integer(3)}}),
                                {{"archive/data/0", std::string("\0\0\x80\x3f\0\0\x80\x3f", 8)},
                                 {"archive/data/1", std::string("\0\0\0\x40\0\0\0\x40", 8)}});
  const auto first = [&](const char* name) {
    float value = 0;
    const Checkpoint file = Checkpoint::open(out("x.safetensors"));
    std::memcpy(&value, file.at(name).data, sizeof value);
    return value;
  };
  const Result r = run(path("run.pth") + " " + out("x.safetensors"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("section 'ema'"), std::string::npos) << r.out;
  EXPECT_EQ(first("w"), 2.0f);
  const Checkpoint file = Checkpoint::open(out("x.safetensors"));
  EXPECT_EQ(file.metadata().at("epoch"), "3");
  EXPECT_FALSE(file.metadata().contains("opt.lr"));
  ASSERT_EQ(run(path("run.pth") + " " + out("x.safetensors") + " --section model").code, 0);
  EXPECT_EQ(first("w"), 1.0f);
  ASSERT_EQ(run(path("run.pth") + " " + out("x.safetensors") + " --section all").code, 0);
  EXPECT_EQ(first("opt.m.w"), 1.0f);
  EXPECT_EQ(first("ema.w"), 2.0f);
}

TEST_F(Convert, WarnsOfNumbersThatAreTooLarge) {
  const float large[] = {1e6f, 1.0f};
  mhla::io::write_safetensors(in(), {{.name = "x",
                                      .section = {},
                                      .type = ScalarType::f32,
                                      .shape = {2},
                                      .strides = {1},
                                      .data = reinterpret_cast<const char*>(large)}});
  const Result r = run(in() + " " + out("x.safetensors") + " --dtype f16");
  EXPECT_EQ(r.code, 0);
  EXPECT_NE(r.out.find("1 elements became infinite"), std::string::npos) << r.out;
}

TEST_F(Convert, NeverReplacesItsInput) {
  const std::string before = slurp(in());
  std::filesystem::create_symlink(in(), path("link.safetensors"));
  for (const std::string& target :
       {in(), path("work/../in.safetensors"), path("link.safetensors")}) {
    expect_failure(run(in() + " " + target + " --dtype bf16"), 2, {"being read"});
  }
  EXPECT_EQ(slurp(in()), before);
}

TEST_F(Convert, MistakesAreErrorsOfOneLineAndLeaveNoFile) {
  const std::string x = out("x.safetensors");
  expect_failure(run(in()), 2, {"out is required"});
  expect_failure(run(path("none.pth") + " " + x), 1, {"none.pth", "No such file"});
  expect_failure(run(in() + " " + out("x.pth")), 2, {"only safetensors", "x.safetensors"});
  expect_failure(run(in() + " " + out("no/x.safetensors")), 1, {"No such file"});
  expect_failure(run(in() + " " + out("no/")), 1, {"no folder", "create it"});
  expect_failure(run(in() + " " + x + " --dtype int8"), 2, {"'int8'", "bf16"});
  expect_failure(run(in() + " " + x + " --file_size much"), 2, {"'much'", "5GB"});
  expect_failure(run(in() + " " + x + " --file_size 0GB"), 2, {"'0GB'"});
  expect_failure(run(in() + " " + x + " --section ema"), 2, {"'ema'"});
  expect_failure(run(in() + " " + x + " --dtpye bf16"), 2, {"did you mean '--dtype'"});
  std::filesystem::resize_file(in(), 300);
  expect_failure(run(in() + " " + x), 1, {"truncated"});
  std::ofstream(in()) << "not a checkpoint";
  expect_failure(run(in() + " " + x), 1, {"neither"});
}

TEST_F(Convert, AFullDiskIsAnErrorAndLeavesNoFile) {
  // A limit of two blocks of 512 or 1024 bytes stands for the disk; the file needs more.
  expect_failure(run(in() + " " + out("x.safetensors"), "ulimit -f 2; "), 1, {"File too large"});
  expect_failure(run(in() + " " + out("x.safetensors") + " --file_size 2KiB", "ulimit -f 2; "), 1,
                 {"File too large"});
}

TEST_F(Convert, WhatNeedsANetworkSaysSoWithoutOne) {
  const std::string none = "MHLA_TORCH_LIBRARY=/nowhere/libmhla_torch.so ";
  for (const char* flags : {"--model deit-t", "--to timm", "--options image_size=384"}) {
    expect_failure(run(in() + " " + out("x.safetensors") + " " + flags, none), 1,
                   {"libmhla_torch.so", "/nowhere", "MHLA_TORCH_LIBRARY"});
  }
}

}  // namespace
