// A whole file as read-only bytes, mapped into memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mhla::io {

// NOTE: the mapping is private and writable, so a LibTorch tensor may share it: a write changes a
// page of this process, never the file. Another process that truncates a mapped file makes the next
// access fail with SIGBUS, as for every program that maps files.
class FileBytes {
 public:
  // Throws ErrorCode::io where the file is missing, unreadable or not a regular file.
  static std::shared_ptr<const FileBytes> map(const std::string& path);
  // For bytes that come from elsewhere; `name` is what messages call them.
  static std::shared_ptr<const FileBytes> copy(std::string name, std::string_view bytes);

  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  ~FileBytes();

  const std::string& name() const { return name_; }
  std::string_view bytes() const { return bytes_; }

 private:
  FileBytes() = default;
  std::string name_;
  std::vector<char> copy_;  // of exactly the size, so that the sanitizer sees its end
  std::string_view bytes_;
  bool mapped_ = false;
};

using FilePointer = std::shared_ptr<const FileBytes>;

}  // namespace mhla::io
