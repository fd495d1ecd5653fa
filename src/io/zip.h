// The entries of a zip file whose content is stored as it is, as torch.save writes them.
#pragma once

#include <string_view>
#include <vector>

#include "io/file_bytes.h"

namespace mhla::io {

struct ZipEntry {
  std::string_view name, bytes;  // both inside the file
  unsigned method = 0;           // of compression; the bytes are the content where it is 0
};

// Sorted by name. Names are unique, and no two entries share a byte: nothing can grow beyond the
// file's own size. Nothing is decompressed. Encryption and several disks throw
// ErrorCode::unsupported; whatever contradicts itself or points outside the file throws
// ErrorCode::corrupt_data.
std::vector<ZipEntry> read_zip(const FileBytes& file);

}  // namespace mhla::io
