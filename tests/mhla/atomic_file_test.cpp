// Files that are there as a whole or not at all.
#include "mhla/core/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "mhla/error.h"

namespace {

namespace fs = std::filesystem;
using mhla::AtomicFile;

class Atomic : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "mhla-atomic-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::string text(const char* name) const {
    std::ostringstream all;
    all << std::ifstream(path(name)).rdbuf();
    return all.str();
  }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(Atomic, ReplacesAFileOnlyWhenItIsComplete) {
  std::ofstream(path("a")) << "old";
  AtomicFile file(path("a"), "test");
  file.write("new text", 8);
  EXPECT_EQ(text("a"), "old");
  file.commit();
  EXPECT_EQ(text("a"), "new text");
  EXPECT_EQ(files(), 1);
}

TEST_F(Atomic, NothingIsLeftOfAFileThatWasNotCommitted) {
  {
    AtomicFile(path("a"), "test").write("x", 1);
  }
  EXPECT_EQ(files(), 0);
}

// So a signal that ends the process, even SIGKILL, leaves nothing either.
TEST_F(Atomic, AFileInTheMakingHasNoName) {
  const int probe = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY, 0666);
  if (probe < 0) GTEST_SKIP() << "this file system has no files without a name";
  ::close(probe);
  AtomicFile file(path("a"), "test");
  file.write("x", 1);
  EXPECT_EQ(files(), 0);
}

TEST_F(Atomic, FoldersThatAreMissingAreNamed) {
  try {
    AtomicFile(path("no/a"), "test");
    FAIL();
  } catch (const mhla::Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot create '" + path("no/a") + "'"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
