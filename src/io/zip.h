// The entries of a zip file whose content is stored as it is, as torch.save writes them.
#pragma once

#include <string_view>
#include <vector>

#include "io/file_bytes.h"

namespace mhla::io {

struct ZipEntry {
  std::string_view name, bytes;  // both inside the file
};

// Sorted by name. Names are unique, and no two entries share a byte: nothing can grow beyond the
// file's own size. Compression, encryption and several disks throw ErrorCode::unsupported;
// whatever contradicts itself or points outside the file throws ErrorCode::corrupt_data.
std::vector<ZipEntry> read_zip(const FileBytes& file);

}  // namespace mhla::io
