// `mhla compare` from outside: what it makes of logs and lists that nobody wrote on purpose.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program_fixture.h"
#include "io/image.h"

namespace {

using mhla::test::Result;
using mhla::test::slurp;

class Compare : public mhla::test::ProgramTest {
 protected:
  // A run as training leaves it.
  void make_run(const std::string& name) const {
    std::filesystem::create_directories(path(name + "/examples"));
    std::ofstream(path(name + "/log.jsonl"))
        << R"({"kind":"train","step":1,"epoch":0.5,"loss":2.5,"samples_per_second":10})" << "\n"
        << R"({"kind":"eval","step":2,"epoch":1,"top1":12.5})" << "\n";
    std::ofstream(path(name + "/config.yaml")) << "model:\n  name: <tiny>\n";
  }
  void list_examples(const std::string& run, const std::string& text) const {
    std::ofstream(path(run + "/examples/examples.json")) << text;
  }
  Result compare(const std::string& arguments) const {
    return program("compare " + arguments + " --out '" + path("page.html") + "'");
  }
};

TEST_F(Compare, ShowsRunsAndWritesAPage) {
  make_run("a");
  make_run("b");
  mhla::io::write_image(path("a/examples/0.png"), mhla::io::Image(2, 2).view());
  list_examples("a", R"([{"file":"0.png","label":"cat","predicted":"dog"}])");
  const std::string runs = path("a") + " " + path("b") + "/";
  const Result r = compare(runs);
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* row : {"a    2      2.5         12.5  10", "b    2      2.5         12.5  10"}) {
    EXPECT_NE(r.out.find(row), std::string::npos) << r.out;
  }
  const std::string page = slurp(path("page.html"));
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("dog (is cat)"), std::string::npos);
  EXPECT_NE(page.find("name: &lt;tiny&gt;"), std::string::npos);
  const auto document = nlohmann::json::parse(program("compare --json " + runs).out);
  EXPECT_EQ(document["runs"][1]["run"], "b");
  EXPECT_EQ(document["runs"][1]["eval"]["top1"], 12.5);
}

TEST_F(Compare, AListOfExamplesThatIsNonsenseIsPassedOver) {
  make_run("a");
  std::ofstream(path("secret.png")) << "secret";
  for (const char* list :
       {"[5]", "[[]]", "{", "[{\"file\":5}]", "[{\"file\":\"..\"}]", "[{\"file\":\"\"}]",
        R"([{"file":"../../secret.png"}])", R"([{"file":"no.png","label":[1],"predicted":{}}])"}) {
    list_examples("a", list);
    const Result r = compare("'" + path("a") + "'");
    EXPECT_EQ(r.code, 0) << list << ": " << r.err;
    EXPECT_EQ(slurp(path("page.html")).find("predictions"), std::string::npos) << list;
  }
}

TEST_F(Compare, LinesThatAreNoEntriesArePassedOver) {
  make_run("a");
  std::ofstream(path("a/log.jsonl"), std::ios::app)
      << "\xff\xfe\n[1]\n5\n{\"kind\":\"train\",\"step\":\"x\",\"epoch\":1}\n{\"step\":1e999}\n"
      << std::string(100000, '[') << "\n{\"kind\":\"tra";
  const Result r = compare("'" + path("a") + "'");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("a    2      2.5         12.5  10"), std::string::npos) << r.out;
}

TEST_F(Compare, WhatIsNoRunIsNamed) {
  std::filesystem::create_directories(path("folder/log.jsonl"));
  std::filesystem::create_directories(path("device"));
  std::filesystem::create_symlink("/dev/zero", path("device/log.jsonl"));
  for (const char* each : {"nowhere", "folder", "device"}) {
    const std::string name = each;
    const Result r = compare("'" + path(name) + "'");
    EXPECT_EQ(r.code, 1) << name;
    EXPECT_NE(r.err.find(name + "' is no run"), std::string::npos) << r.err;
    EXPECT_FALSE(std::filesystem::exists(path("page.html")));
  }
}

TEST_F(Compare, NamesNeedNotBeUtf8) {
  make_run("\xff");
  const Result r = program("compare --json '" + path("\xff") + "'");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(nlohmann::json::parse(r.out)["runs"][0]["run"], "\xef\xbf\xbd");
}

}  // namespace
