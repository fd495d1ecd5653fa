// A file that appears under its name only when it is complete and on the disk.
#pragma once

#include <cstddef>
#include <string>

namespace mhla {

// Writes to a file without a name, which then gets one; a crash or a signal leaves the old file in
// place and nothing beside it. Where the file system cannot do that, to
// `path`.tmp.<process>.<number>, which an exception removes. Failures throw ErrorCode::io with
// `[mhla.<where>]`.
class AtomicFile {
 public:
  AtomicFile(std::string path, const char* where);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* data, std::size_t bytes);
  void commit();  // flushes, closes, renames; nothing may be written afterwards

 private:
  [[noreturn]] void fail_to(const char* action, const std::string& path) const;

  std::string path_, temporary_;
  const char* where_;
  int file_ = -1;
  bool named_ = false;  // temporary_ is there
};

}  // namespace mhla
