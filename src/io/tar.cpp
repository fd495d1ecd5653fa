// Tar archives: ustar, with the long names of GNU and of POSIX (pax).
#include "io/tar.h"

#include <algorithm>
#include <cstdint>

#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr std::size_t kBlock = 512;

std::string_view field(std::string_view header, std::size_t offset, std::size_t length) {
  const std::string_view text = header.substr(offset, length);
  return text.substr(0, text.find('\0'));
}

// Octal, or big-endian binary where the first bit is set. -1 where it is neither.
std::int64_t number(std::string_view text) {
  std::int64_t value = 0;
  if (!text.empty() && (static_cast<unsigned char>(text[0]) & 0x80)) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (value >> 54) return -1;
      value = value * 256 + (i == 0 ? byte & 0x7f : byte);
    }
    return value;
  }
  for (const char c : text) {
    if (c == ' ' || c == '\0') continue;
    if (c < '0' || c > '7' || value >> 58) return -1;
    value = value * 8 + (c - '0');
  }
  return value;
}

bool checksum_fits(std::string_view header) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= 148 && i < 156;  // counted as spaces
    sum += own ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return sum == number(header.substr(148, 8));
}

// "27 path=train/a.JPEG\n": the value of `path`, if there is one.
std::string pax_path(std::string_view records) {
  while (!records.empty()) {
    const std::size_t line_end = records.find('\n');
    const std::string_view line = records.substr(0, line_end);
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos && line.substr(space + 1).starts_with("path=")) {
      return std::string(line.substr(space + 6));
    }
    if (line_end == std::string_view::npos) break;
    records.remove_prefix(line_end + 1);
  }
  return {};
}

}  // namespace

bool looks_like_tar(std::string_view bytes) {
  return bytes.size() >= kBlock && bytes.substr(257, 5) == "ustar";
}

std::vector<TarFile> read_tar(std::string_view bytes, const std::string& name) {
  std::vector<TarFile> files;
  std::string long_name;
  std::size_t place = 0;
  while (bytes.size() - place >= kBlock) {
    const std::string_view header = bytes.substr(place, kBlock);
    if (header.find_first_not_of('\0') == std::string_view::npos) return files;  // the end
    if (!checksum_fits(header)) {
      fail(ErrorCode::corrupt_data, "data", name,
           ": not a readable tar file: wrong checksum at byte ", place);
    }
    const std::int64_t size = number(header.substr(124, 12));
    place += kBlock;
    if (size < 0 || static_cast<std::uint64_t>(size) > bytes.size() - place) {
      fail(ErrorCode::corrupt_data, "data", name, ": not a readable tar file: it ends too early");
    }
    const std::string_view content = bytes.substr(place, static_cast<std::size_t>(size));
    const char type = header[156];
    if (type == 'L') {
      long_name = content.substr(0, content.find('\0'));
    } else if (type == 'x') {
      long_name = pax_path(content);
    } else if (type != 'g') {
      std::string path = std::move(long_name);
      long_name.clear();
      if (path.empty()) {
        const std::string_view prefix = field(header, 345, 155);
        const bool ustar = header.substr(257, 6) == std::string_view("ustar\0", 6);
        path = ustar && !prefix.empty() ? std::string(prefix) + "/" : "";
        path += field(header, 0, 100);
      }
      if (type == '0' || type == '\0') files.push_back({std::move(path), content});
    }
    place += std::min((content.size() + kBlock - 1) / kBlock * kBlock, bytes.size() - place);
  }
  // Some programs leave out the empty end, but none writes a part of a block.
  if (bytes.size() % kBlock != 0) {
    fail(ErrorCode::corrupt_data, "data", name, ": not a readable tar file: it ends too early");
  }
  return files;
}

}  // namespace mhla::io
