// The choice of what unpacks a file.
#include "io/compressed.h"

#include "io/file_bytes.h"
#include "mhla/error.h"

namespace mhla::io {

std::string unpack(std::string_view bytes, const std::string& name, std::size_t limit) {
  if (bytes.starts_with("\x1f\x8b")) return unpack_gz(bytes, name, limit);
  if (bytes.starts_with(std::string_view("\xfd"
                                         "7zXZ\0",
                                         6))) {
    return unpack_xz(bytes, name, limit);
  }
  if (bytes.size() > limit) {
    fail(ErrorCode::corrupt_data, "data", name, ": more than the limit of ", limit, " bytes");
  }
  return std::string(bytes);
}

std::string read_unpacked(const std::string& path, std::size_t limit) {
  return unpack(FileBytes::map(path)->bytes(), path, limit);
}

}  // namespace mhla::io
