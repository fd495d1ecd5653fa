// What must hold for every checkpoint that a reader accepts, and every error it gives.
#pragma once

#include <string>
#include <vector>

#include "fuzz/check.h"
#include "io/checkpoint.h"
#include "mhla/error.h"

namespace mhla::fuzz {

inline void exercise(const io::Checkpoint& checkpoint, std::size_t file_bytes) {
  for (const io::Tensor& tensor : checkpoint.tensors()) {
    MHLA_FUZZ_CHECK(checkpoint.find(tensor.name) == &tensor);
    MHLA_FUZZ_CHECK(tensor.shape.size() == tensor.strides.size());
    MHLA_FUZZ_CHECK(tensor.bytes() <= file_bytes);
    std::vector<char> copy(tensor.bytes());
    tensor.copy_to(copy.data());  // under ASan: reads every element
    MHLA_FUZZ_CHECK(io::is_utf8(tensor.name));
    MHLA_FUZZ_CHECK(checkpoint.file_of(tensor) != nullptr);
  }
  for (const auto& [key, value] : checkpoint.metadata()) {
    MHLA_FUZZ_CHECK(io::is_utf8(key) && io::is_utf8(value));
  }
  for (const std::string& section : checkpoint.sections()) {
    const io::Checkpoint part = checkpoint.section(section);
    MHLA_FUZZ_CHECK(!part.tensors().empty());
  }
  const io::Checkpoint weights = checkpoint.weights();
  MHLA_FUZZ_CHECK(weights.tensors().size() <= checkpoint.tensors().size());
}

// One line of printable text that names the file.
inline void check_error(const Error& error) {
  MHLA_FUZZ_CHECK(error.code() == ErrorCode::corrupt_data ||
                  error.code() == ErrorCode::unsupported);
  const std::string text = error.what();
  MHLA_FUZZ_CHECK(text.find("'fuzzed.file'") != std::string::npos && text.size() < 2000);
  for (const char c : text) MHLA_FUZZ_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

inline void read_checkpoint(const std::string& bytes) {
  try {
    exercise(io::Checkpoint::read(io::FileBytes::copy("fuzzed.file", bytes)), bytes.size());
  } catch (const Error& error) {
    check_error(error);
  }
}

}  // namespace mhla::fuzz
