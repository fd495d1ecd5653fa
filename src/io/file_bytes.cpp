// Mapping of whole files.
#include "io/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "mhla/error.h"

namespace mhla::io {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void refuse(const std::string& path, const char* why) {
  fail(ErrorCode::io, "io", "cannot read '", path, "': ", why);
}

}  // namespace

FilePointer FileBytes::map(const std::string& path) {
  // NOTE: O_NONBLOCK, because opening a pipe would wait for its writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct ::stat info{};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) refuse(path, "not a regular file");
  const std::shared_ptr<FileBytes> result(new FileBytes);
  result->name_ = path;
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return result;  // cannot be mapped
  void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd,
                       0);
  if (start == MAP_FAILED) refuse(path, std::strerror(errno));
  result->mapped_ = true;
  result->bytes_ = {static_cast<const char*>(start), size};
  return result;
}

FilePointer FileBytes::copy(std::string name, std::string_view bytes) {
  const std::shared_ptr<FileBytes> result(new FileBytes);
  result->name_ = std::move(name);
  result->copy_.assign(bytes.begin(), bytes.end());
  result->bytes_ = {result->copy_.data(), result->copy_.size()};
  return result;
}

FileBytes::~FileBytes() {
  if (mapped_) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace mhla::io
