// The central directory of a zip file, with the 64-bit extension (APPNOTE 6.3, sections 4.3
// to 4.5).
#include "io/zip.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "io/tensor.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr std::uint64_t kEnd = 22, kEnd64 = 56, kLocator64 = 20, kCentral = 46, kLocal = 30;
constexpr std::uint32_t kIn64 = 0xffffffff;  // the value stands in the extension instead
constexpr std::uint16_t kExtra64 = 1;        // the extension's identifier

template <typename... Values>
[[noreturn]] void corrupt(const FileBytes& file, Values&&... values) {
  fail(ErrorCode::corrupt_data, "io", "'", file.name(), "': zip: ", std::forward<Values>(values)...,
       "; the file is damaged or incomplete, download or save it again");
}

class Reader {
 public:
  explicit Reader(const FileBytes& file) : file_(file), bytes_(file.bytes()) {}

  // `count` bytes at `offset`, or an error that says what is missing.
  std::string_view slice(std::uint64_t offset, std::uint64_t count, const char* what) const {
    if (offset > bytes_.size() || count > bytes_.size() - offset) {
      corrupt(file_, what, ": ", count, " bytes at ", offset, " lie outside of the file's ",
              bytes_.size());
    }
    return bytes_.substr(offset, count);
  }
  template <typename T>
  static T number(std::string_view from, std::size_t at) {
    T value;
    std::memcpy(&value, from.substr(at, sizeof value).data(), sizeof value);
    return value;
  }
  std::uint64_t size() const { return bytes_.size(); }

 private:
  const FileBytes& file_;
  std::string_view bytes_;
};

struct Directory {
  std::uint64_t offset, bytes, entries;
};

struct Entry {
  ZipEntry content;
  std::uint64_t begin, end;  // of header and content
};

// The last record that fits: a comment may follow it.
std::uint64_t find_end(const FileBytes& file) {
  const std::string_view bytes = file.bytes();
  if (bytes.size() < kEnd) corrupt(file, "no directory in ", bytes.size(), " bytes");
  const std::uint64_t last = bytes.size() - kEnd;
  const std::uint64_t first = last > 0xffff ? last - 0xffff : 0;
  for (std::uint64_t at = last + 1; at-- > first;) {
    if (bytes.compare(at, 4, "PK\x05\x06") != 0) continue;
    if (at + kEnd + Reader::number<std::uint16_t>(bytes.substr(at), 20) == bytes.size()) return at;
  }
  corrupt(file, "no directory at the end");
}

Directory find_directory(const FileBytes& file, const Reader& reader) {
  const std::uint64_t at = find_end(file);
  const std::string_view end = reader.slice(at, kEnd, "end record");
  const auto number16 = [&](std::size_t i) { return Reader::number<std::uint16_t>(end, i); };
  if (number16(4) != number16(6)) {
    fail(ErrorCode::unsupported, "io", "'", file.name(), "': a zip file of several disks");
  }
  Directory directory{.offset = Reader::number<std::uint32_t>(end, 16),
                      .bytes = Reader::number<std::uint32_t>(end, 12),
                      .entries = number16(10)};
  std::uint64_t directory_end = at;
  if (at >= kLocator64 && reader.slice(at - kLocator64, 4, "locator") == "PK\x06\x07") {
    const std::string_view locator = reader.slice(at - kLocator64, kLocator64, "locator");
    directory_end = Reader::number<std::uint64_t>(locator, 8);
    const std::string_view end64 = reader.slice(directory_end, kEnd64, "64-bit end record");
    if (!end64.starts_with("PK\x06\x06")) corrupt(file, "no 64-bit end record at ", directory_end);
    directory = {.offset = Reader::number<std::uint64_t>(end64, 48),
                 .bytes = Reader::number<std::uint64_t>(end64, 40),
                 .entries = Reader::number<std::uint64_t>(end64, 32)};
  }
  if (directory.offset > directory_end || directory.bytes != directory_end - directory.offset) {
    corrupt(file, "directory of ", directory.bytes, " bytes at ", directory.offset,
            " does not end at ", directory_end);
  }
  if (directory.entries > directory.bytes / kCentral) {
    corrupt(file, directory.entries, " entries in a directory of ", directory.bytes, " bytes");
  }
  return directory;
}

// The 64-bit values of an entry, in this order and only where the 32-bit ones are full.
struct Sizes {
  std::uint64_t size, packed, offset;
};

Sizes sizes_of(const FileBytes& file, std::string_view header, std::string_view extra) {
  Sizes sizes{.size = Reader::number<std::uint32_t>(header, 24),
              .packed = Reader::number<std::uint32_t>(header, 20),
              .offset = Reader::number<std::uint32_t>(header, 42)};
  if (sizes.size != kIn64 && sizes.packed != kIn64 && sizes.offset != kIn64) return sizes;
  while (extra.size() >= 4) {
    const auto id = Reader::number<std::uint16_t>(extra, 0);
    const auto length = Reader::number<std::uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (length > extra.size()) break;
    if (id == kExtra64) {
      std::string_view values = extra.substr(0, length);
      for (std::uint64_t* field : {&sizes.size, &sizes.packed, &sizes.offset}) {
        if (*field != kIn64) continue;
        if (values.size() < 8) corrupt(file, "64-bit sizes are cut off");
        *field = Reader::number<std::uint64_t>(values, 0);
        values.remove_prefix(8);
      }
      return sizes;
    }
    extra.remove_prefix(length);
  }
  corrupt(file, "an entry announces 64-bit sizes and has none");
}

Entry read_entry(const FileBytes& file, const Reader& reader, std::uint64_t& at,
                 std::uint64_t data_end) {
  const std::string_view header = reader.slice(at, kCentral, "directory");
  if (!header.starts_with("PK\x01\x02")) corrupt(file, "no directory entry at ", at);
  const auto number16 = [&](std::size_t i) { return Reader::number<std::uint16_t>(header, i); };
  const std::uint64_t name_bytes = number16(28), extra_bytes = number16(30), comment = number16(32);
  const std::string_view name = reader.slice(at + kCentral, name_bytes, "entry name");
  const std::string_view extra = reader.slice(at + kCentral + name_bytes, extra_bytes, "extra");
  at += kCentral + name_bytes + extra_bytes + comment;

  const auto flags = number16(8), method = number16(10);
  if ((flags & 0x41) != 0) {
    fail(ErrorCode::unsupported, "io", "'", file.name(), "': entry ", shown(name),
         " is encrypted; save the file without a password");
  }
  const Sizes sizes = sizes_of(file, header, extra);
  if (method == 0 && sizes.size != sizes.packed) {
    corrupt(file, "entry ", shown(name), " is stored, but its sizes differ: ", sizes.packed,
            " and ", sizes.size);
  }
  const std::string_view local = reader.slice(sizes.offset, kLocal, "entry header");
  if (!local.starts_with("PK\x03\x04")) {
    corrupt(file, "entry ", shown(name), ": no header at ", sizes.offset);
  }
  const std::uint64_t local_name = Reader::number<std::uint16_t>(local, 26);
  const std::uint64_t local_extra = Reader::number<std::uint16_t>(local, 28);
  if (reader.slice(sizes.offset + kLocal, local_name, "entry header") != name) {
    corrupt(file, "entry ", shown(name), " has another name at ", sizes.offset);
  }
  const std::uint64_t begin = sizes.offset + kLocal + local_name + local_extra;
  const std::string_view bytes = reader.slice(begin, sizes.packed, "entry");
  if (begin + sizes.packed > data_end) {
    corrupt(file, "entry ", shown(name), " reaches into the directory at ", data_end);
  }
  return {{name, bytes, method}, sizes.offset, begin + sizes.packed};
}

}  // namespace

std::vector<ZipEntry> read_zip(const FileBytes& file) {
  const Reader reader(file);
  const Directory directory = find_directory(file, reader);
  std::vector<Entry> entries;
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    entries.push_back(read_entry(file, reader, at, directory.offset));
  }
  if (at != directory.offset + directory.bytes) {
    corrupt(file, "the ", directory.entries, " entries of the directory end at ", at, ", not at ",
            directory.offset + directory.bytes);
  }
  std::ranges::sort(entries, {}, &Entry::begin);
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].begin < entries[i - 1].end) {
      corrupt(file, "entries ", shown(entries[i - 1].content.name), " and ",
              shown(entries[i].content.name), " overlap");
    }
  }
  std::vector<ZipEntry> result;
  result.reserve(entries.size());
  for (const Entry& entry : entries) result.push_back(entry.content);
  std::ranges::sort(result, {}, &ZipEntry::name);
  const auto twice = std::ranges::adjacent_find(result, {}, &ZipEntry::name);
  if (twice != result.end()) corrupt(file, "two entries are called ", shown(twice->name));
  return result;
}

}  // namespace mhla::io
