// Where a build has no zlib.
#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::io {

std::string unpack_gz(std::string_view, const std::string& name, std::size_t) {
  fail(ErrorCode::unsupported, "data", name,
       ": this build unpacks no .gz, zlib was not found (gunzip it first)");
}

}  // namespace mhla::io
