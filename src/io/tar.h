// The files inside a tar archive that lies in memory. Nothing is ever unpacked to the disk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mhla::io {

struct TarFile {
  std::string name;
  std::string_view bytes;  // inside the archive's
};

bool looks_like_tar(std::string_view bytes);

// The regular files, in the order of the archive; links, folders and devices are left out. Throws
// Error(corrupt_data) with `name` in front for a damaged archive.
std::vector<TarFile> read_tar(std::string_view bytes, const std::string& name);

}  // namespace mhla::io
