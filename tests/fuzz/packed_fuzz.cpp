// Fuzzes the unpacking of .gz and .xz and the reader of tar files.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "fuzz/check.h"
#include "io/compressed.h"
#include "io/tar.h"
#include "mhla/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kLimit = std::size_t{16} << 20;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    bytes = mhla::io::unpack(bytes, "fuzzed", kLimit);
    MHLA_FUZZ_CHECK(bytes.size() <= kLimit);
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(std::string(error.what()).find("fuzzed: ") != std::string::npos);
  }
  try {
    for (const mhla::io::TarFile& file : mhla::io::read_tar(bytes, "fuzzed")) {
      const std::less_equal<const char*> before;
      MHLA_FUZZ_CHECK(before(bytes.data(), file.bytes.data()));
      MHLA_FUZZ_CHECK(before(file.bytes.data() + file.bytes.size(), bytes.data() + bytes.size()));
    }
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(std::string(error.what()).find("fuzzed: ") != std::string::npos);
  }
  return 0;
}
