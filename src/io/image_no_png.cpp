// Where a build has no libpng.
#include "io/image.h"
#include "mhla/error.h"

namespace mhla::io {

Image decode_png(std::string_view, const std::string& name) {
  fail(ErrorCode::unsupported, "image", name, ": this build reads no PNG: libpng was not found");
}

std::string encode_png(const ImageView&) {
  fail(ErrorCode::unsupported, "image", "this build writes no PNG: libpng was not found");
}

}  // namespace mhla::io
