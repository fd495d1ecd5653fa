// Fuzzes configurations: YAML and words of the command line; every value prints as what it was
// read.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/check.h"
#include "io/config.h"
#include "mhla/error.h"

namespace {

using mhla::io::Config;

void check_printing(const Config& config) {
  Config plain;  // names come from the program, values from outside
  for (const auto& [path, value] : config.values()) {
    plain.set("k" + std::to_string(plain.values().size()), value);
  }
  const Config again = Config::parse(plain.to_yaml(), "printed");
  MHLA_FUZZ_CHECK(again.values().size() == plain.values().size());
  for (const auto& [path, value] : plain.values()) {
    MHLA_FUZZ_CHECK(again.values().at(path).items == value.items);
    MHLA_FUZZ_CHECK(again.values().at(path).list == value.list);
  }
}

void read_all(Config& config) {
  const auto values = config.values();
  for (const auto& [path, value] : values) {
    double number = 0;
    std::vector<std::int64_t> list;
    try {
      config.read(path, number);
      MHLA_FUZZ_CHECK(number - number == 0);  // finite
    } catch (const mhla::Error&) {
    }
    try {
      config.read(path, list);
    } catch (const mhla::Error&) {
    }
  }
  config.finish();  // everything was asked for
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    Config config = Config::parse(text, "fuzzed");
    check_printing(config);
    read_all(config);
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(std::string(error.what()).find("fuzzed") != std::string::npos);
  }
  try {
    Config config;
    config.override_with(text);
    check_printing(config);
  } catch (const mhla::Error&) {
  }
  return 0;
}
