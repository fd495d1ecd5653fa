// Whole files that may be packed: .gz (zlib) and .xz (liblzma), told apart by their first bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mhla::io {

// What no data set of ours reaches, against small files that unpack to fill the memory.
inline constexpr std::size_t kMostUnpacked = std::size_t{4} << 30;

// The content, unpacked where it was packed. Throw Error(corrupt_data) with `name` in front for a
// damaged file or more than `limit` bytes.
std::string unpack(std::string_view bytes, const std::string& name,
                   std::size_t limit = kMostUnpacked);
std::string read_unpacked(const std::string& path, std::size_t limit = kMostUnpacked);

std::string unpack_gz(std::string_view bytes, const std::string& name, std::size_t limit);
std::string unpack_xz(std::string_view bytes, const std::string& name, std::size_t limit);

}  // namespace mhla::io
