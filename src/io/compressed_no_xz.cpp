// Where a build has no liblzma.
#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::io {

std::string unpack_xz(std::string_view, const std::string& name, std::size_t) {
  fail(ErrorCode::unsupported, "data", name,
       ": this build unpacks no .xz, liblzma was not found (unxz it first)");
}

}  // namespace mhla::io
