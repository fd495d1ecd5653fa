// Stands in for yaml.cpp where yaml-cpp is missing.
#include "io/config.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorCode::unsupported, "config",
       "this build cannot read YAML: install yaml-cpp (libyaml-cpp-dev) and build again");
}

}  // namespace

Config Config::parse(const std::string&, const std::string&) { refuse(); }
Config Config::load(const std::string&) { refuse(); }

}  // namespace mhla::io
