// Sums and framing of event files; tests/train reads them with TensorBoard's own reader.
#include "io/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "mhla/error.h"

namespace mhla::io {
namespace {

TEST(TensorBoard, SumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

TEST(TensorBoard, RecordsHaveTheirLengthAndEndWithTheFile) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "mhla_tensorboard";
  std::string path;
  {
    TensorBoard board(folder.string(), 5);
    board.scalars(6, {{"train/loss", 1.5}, {"train/lr", 1e-3}});
    path = board.path();
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::size_t at = 0;
  int records = 0;
  while (at + 16 <= bytes.size()) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    at += 12 + length + 4;
    ++records;
  }
  EXPECT_EQ(at, bytes.size());
  EXPECT_EQ(records, 3);  // version, start at step 5, scalars
  EXPECT_NE(bytes.find("brain.Event:2"), std::string::npos);
  EXPECT_NE(bytes.find("train/loss"), std::string::npos);
}

TEST(TensorBoard, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(TensorBoard("/dev/null/folder", 0), Error);
}

}  // namespace
}  // namespace mhla::io
