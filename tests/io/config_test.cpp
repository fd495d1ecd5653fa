// Configurations: YAML, overrides, typed reading, unknown keys, printing.
#include "io/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "mhla/error.h"

namespace mhla::io {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class ConfigYaml : public ::testing::Test {
 protected:
  // A build without yaml-cpp has nothing to test here.
  void SetUp() override {
    try {
      Config::parse("", "empty");
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unsupported) GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(ConfigYaml, NestedAndDottedNamesAreTheSame) {
  Config nested = Config::parse("train:\n  ema:\n    decay: 0.5\n", "a.yaml");
  Config dotted = Config::parse("train.ema.decay: 0.5", "a.yaml");
  double a = 0, b = 0;
  nested.read("train.ema.decay", a);
  dotted.read("train.ema.decay", b);
  EXPECT_EQ(a, 0.5);
  EXPECT_EQ(b, 0.5);
}

TEST_F(ConfigYaml, ReadsEveryType) {
  Config config = Config::parse(
      "b: true\ni: 12\nwhole: 1e3\nd: 1e-3\ns: some text\nl: [4, 5]\none: 7\nw: [a, b]\n",
      "a.yaml");
  bool b = false;
  std::int64_t i = 0, whole = 0;
  double d = 0;
  std::string s;
  std::vector<std::int64_t> l, one;
  std::vector<std::string> w;
  config.read("b", b);
  config.read("i", i);
  config.read("whole", whole);
  config.read("d", d);
  config.read("s", s);
  config.read("l", l);
  config.read("one", one);
  config.read("w", w);
  config.finish();
  EXPECT_TRUE(b);
  EXPECT_EQ(i, 12);
  EXPECT_EQ(whole, 1000);
  EXPECT_EQ(d, 1e-3);
  EXPECT_EQ(s, "some text");
  EXPECT_EQ(l, (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(one, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(w, (std::vector<std::string>{"a", "b"}));
}

TEST_F(ConfigYaml, ErrorsNameThePathTheValueAndTheLine) {
  Config config = Config::parse("train:\n  lr: fast\n", "configs/a.yaml");
  double lr = 0;
  const std::string message = message_of([&] { config.read("train.lr", lr); });
  EXPECT_NE(message.find("train.lr: expected a number, got 'fast'"), std::string::npos) << message;
  EXPECT_NE(message.find("configs/a.yaml:2"), std::string::npos) << message;
}

TEST_F(ConfigYaml, UnknownKeysAreRefusedWithTheNearest) {
  Config config = Config::parse("train:\n  epoch: 3\n", "a.yaml");
  std::int64_t epochs = 1;
  config.read("train.epochs", epochs);
  const std::string message = message_of([&] { config.finish(); });
  EXPECT_NE(message.find("unknown key 'train.epoch'; did you mean 'train.epochs'?"),
            std::string::npos)
      << message;
}

TEST_F(ConfigYaml, MalformedTextIsOneErrorWithItsLine) {
  for (const char* text :
       {"a: [1, 2\n", "a: {b\n", "- 1\n", "a: 1\na: 2\n", "a: [[1]]\n", "just"}) {
    const std::string message = message_of([&] { Config::parse(text, "bad.yaml"); });
    EXPECT_NE(message.find("bad.yaml"), std::string::npos) << text << ": " << message;
  }
}

TEST_F(ConfigYaml, HostileFilesEndInOneErrorAndSoon) {
  // Names of names: read in full, the first has 10^8 values and the second 10^8 empty maps.
  std::string values = "a0: &a0 {x: 1}\n", nothing = "a0: &a0 {}\n";
  for (int i = 1; i <= 8; ++i) {
    std::string line = "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {";
    for (int j = 0; j < 10; ++j) {
      line += "k" + std::to_string(j) + ": *a" + std::to_string(i - 1) + ", ";
    }
    values += line + "}\n";
    nothing += line + "}\n";
  }
  for (const auto& [text, message] :
       {std::pair<std::string, const char*>(values, "more than 10000 keys"),
        {nothing, "more than 10000 keys"},
        {"a: &a\n  b: *a\n", "nested too deep"},
        {"a: 1\n---\nb: 2\n", "expected one document"},
        {"a: caf\xe9\n", "expected UTF-8 text (bad.yaml)"},
        {std::string("a: \0\n", 5), "expected UTF-8 text (bad.yaml)"},
        {"a: \"\\N\"\n", "the escapes \\N and \\_ are not known (bad.yaml:1)"},
        {",", "bad.yaml"},
        {std::string(100000, '['), "bad.yaml"},
        {std::string(100000, '{'), "bad.yaml"}}) {
    const std::string said = message_of([&] { Config::parse(text, "bad.yaml"); });
    EXPECT_NE(said.find(message), std::string::npos) << said;
  }
}

TEST_F(ConfigYaml, ANumberIsFinite) {
  for (const char* text : {"nan", "-nan", "inf", "-inf", "infinity", "1e999"}) {
    Config config = Config::parse(std::string("lr: ") + text, "a.yaml");
    double lr = 0;
    const std::string said = message_of([&] { config.read("lr", lr); });
    EXPECT_NE(said.find("lr: expected a number, got"), std::string::npos) << text << ": " << said;
  }
}

TEST_F(ConfigYaml, PrintedAndReadAgainIsTheSame) {
  Config config = Config::parse("model: {name: deit-t, blocks: [4, 4]}\nempty: []\n", "a.yaml");
  config.override_with("model.attention=mhla");
  config.override_with("model.attention.preset=paper");
  config.override_with("data.path=/a: b#c 'd' \"e\"");
  config.override_with("negative=-3");
  config.override_with("minus=-x");
  config.override_with("word=NULL");
  config.override_with("data.folder=caf\xc3\xa9 \xf0\x9f\x90\xb1");
  config.set("lines", {.items = {"a\nb\tc\r\x01\x7f"}});
  const Config again = Config::parse(config.to_yaml(), "printed");
  ASSERT_EQ(again.values().size(), config.values().size()) << config.to_yaml();
  for (const auto& [path, value] : config.values()) {
    ASSERT_TRUE(again.has(path)) << path << "\n" << config.to_yaml();
    EXPECT_EQ(again.values().at(path).items, value.items) << path;
    EXPECT_EQ(again.values().at(path).list, value.list) << path;
  }
}

TEST_F(ConfigYaml, AFileMayExtendAnother) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "mhla_config";
  std::filesystem::create_directories(folder / "sub");
  std::ofstream(folder / "base.yaml") << "a: 1\nb: 2\n";
  std::ofstream(folder / "sub" / "more.yaml") << "extends: ../base.yaml\nb: 3\n";
  std::ofstream(folder / "loop.yaml") << "extends: loop.yaml\n";
  Config config = Config::load((folder / "sub" / "more.yaml").string());
  std::int64_t a = 0, b = 0;
  config.read("a", a);
  config.read("b", b);
  config.finish();
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 3);
  EXPECT_THROW(Config::load((folder / "loop.yaml").string()), Error);
  EXPECT_THROW(Config::load((folder / "absent.yaml").string()), Error);
}

TEST(Config, OverridesAreWordsWithAnEqualsSign) {
  Config config;
  config.override_with("train.lr=1e-3");
  config.override_with("train.lr=2e-3");
  config.override_with("list=[1, 2,3]");
  double lr = 0;
  std::vector<double> list;
  config.read("train.lr", lr);
  config.read("list", list);
  EXPECT_EQ(lr, 2e-3);
  EXPECT_EQ(list, (std::vector<double>{1, 2, 3}));
  EXPECT_THROW(config.override_with("train.lr"), Error);
  EXPECT_THROW(config.override_with("=3"), Error);
  for (const char* bytes :
       {"\xe9", "caf\xe9", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_THROW(config.override_with(std::string("data.path=") + bytes), Error) << bytes;
  }
}

TEST(Config, AbsentKeysKeepTheirDefaultAndShowIt) {
  Config config;
  double lr = 0.125;
  std::string name = "adamw";
  config.read("train.lr", lr);
  config.read("train.name", name, {"adamw", "sgd"});
  EXPECT_EQ(lr, 0.125);
  EXPECT_EQ(config.to_yaml(), "train:\n  lr: 0.125\n  name: adamw\n");
}

TEST(Config, AWordOutsideTheChoicesIsAnsweredWithTheNearest) {
  Config config;
  config.override_with("name=adam");
  std::string name = "adamw";
  const std::string message = message_of([&] { config.read("name", name, {"adamw", "sgd"}); });
  EXPECT_NE(message.find("did you mean 'adamw'?"), std::string::npos) << message;
}

TEST(Config, WhatAnotherParserReadsIsTaken) {
  Config config;
  config.override_with("model.name=deit-t");
  config.override_with("model.blocks=[4, 4]");
  const auto taken = config.take("model");
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0], (std::pair<std::string, std::string>{"blocks", "4x4"}));
  config.finish();
}

}  // namespace
}  // namespace mhla::io
