// `mhla data` from outside.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "io/image.h"

namespace {

class DataCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mhla-data-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int run(const std::string& arguments) {
    const std::string line = std::string("'") + MHLA_PROGRAM + "' data " + arguments + " >" +
                             folder_ + "/out 2>" + folder_ + "/err";
    const int status = std::system(line.c_str());
    out_ = slurp(folder_ + "/out");
    err_ = slurp(folder_ + "/err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static std::string slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_, out_, err_;
};

TEST_F(DataCommand, InfoCountsTheClasses) {
  ASSERT_EQ(run("info relations --split val --json"), 0) << err_;
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["samples"], 2000);
  EXPECT_EQ(json["classes"].size(), 10U);
  std::int64_t sum = 0;
  for (const auto& each : json["classes"]) sum += each["samples"].get<std::int64_t>();
  EXPECT_EQ(sum, 2000);
  ASSERT_EQ(run("info relations"), 0);
  EXPECT_NE(out_.find("20000 pictures in 10 classes, 32x32"), std::string::npos) << out_;
}

TEST_F(DataCommand, InfoNamesUnreadablePictures) {
  std::filesystem::create_directories(folder_ + "/set/a");
  mhla::io::write_image(folder_ + "/set/a/1.png", mhla::io::Image(4, 4).view());
  std::ofstream(folder_ + "/set/a/2.png") << "broken";
  EXPECT_EQ(run("info '" + folder_ + "/set' --check"), 1);
  EXPECT_NE(out_.find("a/2.png: neither PNG nor JPEG"), std::string::npos) << out_;
}

TEST_F(DataCommand, PreviewDrawsASheetThatDependsOnTheSeed) {
  const std::string flags = "preview relations --count 2 --copies 3 --image-size 16 --out '";
  ASSERT_EQ(run(flags + folder_ + "/a.png'"), 0) << err_;
  ASSERT_EQ(run(flags + folder_ + "/b.png'"), 0);
  ASSERT_EQ(run(flags + folder_ + "/c.png' --seed 1"), 0);
  const auto sheet = mhla::io::read_image(folder_ + "/a.png");
  EXPECT_EQ(sheet.width(), 4 * 18 + 2);
  EXPECT_EQ(sheet.height(), 2 * 18 + 2);
  EXPECT_EQ(sheet, mhla::io::read_image(folder_ + "/b.png"));
  EXPECT_FALSE(sheet == mhla::io::read_image(folder_ + "/c.png"));
}

TEST_F(DataCommand, MistakesAreNamed) {
  EXPECT_EQ(run("inf relations"), 2);
  EXPECT_NE(err_.find("did you mean 'info'?"), std::string::npos) << err_;
  EXPECT_EQ(run("preview relations"), 2);
  EXPECT_NE(err_.find("--out"), std::string::npos) << err_;
  EXPECT_EQ(run("info /nowhere"), 1);
  EXPECT_NE(err_.find("no data set at '/nowhere'"), std::string::npos) << err_;
  EXPECT_EQ(run("preview relations --out x.png --augment rand-m12"), 2);
}

}  // namespace
