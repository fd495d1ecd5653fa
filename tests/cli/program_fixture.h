// The program from outside: a folder of its own for each test, exit code and both streams.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace mhla::test {

struct Result {
  int code;  // -1: ended by a signal
  std::string out, err;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mhla-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  Result shell(const std::string& command) const {
    const std::string line = command + " >" + path("stdout") + " 2>" + path("stderr");
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(path("stdout")),
            slurp(path("stderr"))};
  }
  // before: what the shell does first, such as "ulimit -f 1; ".
  Result program(const std::string& arguments, const std::string& before = "") const {
    return shell(before + "'" + MHLA_PROGRAM + "' " + arguments);
  }

 private:
  std::string folder_;
};

}  // namespace mhla::test
