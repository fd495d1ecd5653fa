// `mhla data` from outside.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program_fixture.h"
#include "io/image.h"

namespace {

class DataCommand : public mhla::test::ProgramTest {
 protected:
  int run(const std::string& arguments) {
    const mhla::test::Result result = program("data " + arguments);
    out_ = result.out;
    err_ = result.err;
    return result.code;
  }

  std::string out_, err_;
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
  std::filesystem::create_directories(path("set/a"));
  mhla::io::write_image(path("set/a/1.png"), mhla::io::Image(4, 4).view());
  std::ofstream(path("set/a/2.png")) << "broken";
  EXPECT_EQ(run("info '" + path("set") + "' --check"), 1);
  EXPECT_NE(out_.find("a/2.png: neither PNG nor JPEG"), std::string::npos) << out_;
}

TEST_F(DataCommand, PreviewDrawsASheetThatDependsOnTheSeed) {
  const std::string flags = "preview relations --count 2 --copies 3 --image-size 16 --out '";
  ASSERT_EQ(run(flags + path("a.png") + "'"), 0) << err_;
  ASSERT_EQ(run(flags + path("b.png") + "'"), 0);
  ASSERT_EQ(run(flags + path("c.png") + "' --seed 1"), 0);
  const auto sheet = mhla::io::read_image(path("a.png"));
  EXPECT_EQ(sheet.width(), 4 * 18 + 2);
  EXPECT_EQ(sheet.height(), 2 * 18 + 2);
  EXPECT_EQ(sheet, mhla::io::read_image(path("b.png")));
  EXPECT_FALSE(sheet == mhla::io::read_image(path("c.png")));
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

TEST_F(DataCommand, NamesOfClassesNeedNotBeUtf8) {
  std::filesystem::create_directories(path("set/\xff"));
  mhla::io::write_image(path("set/\xff/1.png"), mhla::io::Image(4, 4).view());
  ASSERT_EQ(run("info '" + path("set") + "' --json"), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["classes"][0]["name"], "\xef\xbf\xbd");
}

TEST_F(DataCommand, ASetWithoutPicturesIsAnError) {
  for (const char* split : {"train", "t10k"}) {
    using std::string_literals::operator""s;
    const std::string name = path(split);
    std::ofstream(name + "-images-idx3-ubyte") << "\0\0\x08\x03\0\0\0\0\0\0\0\x04\0\0\0\x04"s;
    std::ofstream(name + "-labels-idx1-ubyte") << "\0\0\x08\x01\0\0\0\0"s;
  }
  EXPECT_EQ(run("preview '" + path("") + "' --out '" + path("x.png") + "'"), 1);
  EXPECT_NE(err_.find("holds no pictures of the split train"), std::string::npos) << err_;
}

TEST_F(DataCommand, ANameThatIsNoPictureIsRefusedBeforeTheWork) {
  EXPECT_EQ(run("preview relations --out '" + path("x.gif") + "'"), 2);
  EXPECT_NE(err_.find("must end in .png, .jpg or .jpeg"), std::string::npos) << err_;
  EXPECT_EQ(out_, "");
}

TEST_F(DataCommand, APictureThatCannotBeWrittenLeavesWhatWasThere) {
  const std::string sheet = path("x.png");
  ASSERT_EQ(run("preview relations --count 1 --copies 1 --out '" + sheet + "'"), 0) << err_;
  const std::string before = mhla::test::slurp(sheet);
  const auto result = program("data preview relations --count 9 --out '" + sheet + "'",
                              "ulimit -f 1; ");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(mhla::test::slurp(sheet), before);
}

}  // namespace
