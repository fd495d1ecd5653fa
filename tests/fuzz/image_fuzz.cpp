// Fuzzes the decoders of pictures: a picture of the size it says, or an error that names the file.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/check.h"
#include "io/image.h"
#include "mhla/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Its own copy, of exactly the size, so that the sanitizer sees reads beyond the end.
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const mhla::io::Image image = mhla::io::decode_image(bytes, "fuzzed");
    MHLA_FUZZ_CHECK(image.width() > 0 && image.height() > 0);
    MHLA_FUZZ_CHECK(image.pixels().size() == std::size_t{3} * image.width() * image.height());
    std::uint32_t sum = 0;
    for (const std::uint8_t value : image.pixels()) sum += value;
    MHLA_FUZZ_CHECK(sum <= 255ULL * image.pixels().size());
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(std::string(error.what()).find("fuzzed: ") != std::string::npos);
  }
  return 0;
}
