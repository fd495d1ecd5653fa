// Where a build has no libjpeg.
#include "io/image.h"
#include "mhla/error.h"

namespace mhla::io {

Image decode_jpeg(std::string_view, const std::string& name) {
  fail(ErrorCode::unsupported, "image", name, ": this build reads no JPEG: libjpeg was not found");
}

std::string encode_jpeg(const ImageView&, int) {
  fail(ErrorCode::unsupported, "image", "this build writes no JPEG: libjpeg was not found");
}

}  // namespace mhla::io
