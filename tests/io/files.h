// Temporary folders, files given as bytes, and the errors that hostile ones must give.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "mhla/error.h"

namespace mhla::test {

class IoTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mhla-io-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_;
};

inline std::string safetensors_file(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

inline io::Checkpoint read(const std::string& bytes) {
  return io::Checkpoint::read(io::FileBytes::copy("some.file", bytes));
}

inline std::size_t count(const std::string& bytes) {
  const io::Checkpoint file = read(bytes);
  return file.tensors().size();
}

template <typename T>
std::vector<T> values(const io::Tensor& tensor) {
  std::vector<T> result(tensor.size());
  tensor.copy_to(result.data());
  return result;
}

inline void expect_error(const std::function<void()>& run, ErrorCode code,
                         const std::vector<std::string>& parts) {
  try {
    run();
    ADD_FAILURE() << "accepted, expected an error with '" << parts.front() << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

// A message names the file and holds `parts`.
inline void expect_refused(const std::string& bytes, std::vector<std::string> parts,
                           ErrorCode code = ErrorCode::corrupt_data) {
  parts.insert(parts.begin(), "'some.file'");
  expect_error([&] { read(bytes); }, code, parts);
}

}  // namespace mhla::test
