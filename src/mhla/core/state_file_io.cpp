// Whole files, written so that a crash leaves the old one in place.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "mhla/core/state_file.h"
#include "mhla/error.h"

namespace mhla::streaming {
namespace {

[[noreturn]] void io_error(const char* where, const std::string& path, const char* action) {
  fail(ErrorCode::io, where, "cannot ", action, " '", path, "': ", std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

// Removes the temporary file unless it has become the real one.
struct TemporaryName {
  std::string path;
  bool renamed = false;
  ~TemporaryName() {
    if (!renamed) ::unlink(path.c_str());
  }
};

bool write_all(int fd, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ::ssize_t written = ::write(fd, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void write_file(const std::string& path, const std::string& bytes) {
  constexpr const char* kWhere = "state.save";
  static std::atomic<unsigned> counter{0};
  // Renaming over a device or a pipe would replace it by a plain file.
  struct ::stat old{};
  if (::stat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode)) {
    fail(ErrorCode::io, kWhere, "cannot replace '", path, "': not a regular file");
  }
  const std::string temporary = path + ".tmp." + std::to_string(::getpid()) + "." +
                                std::to_string(counter++);
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) io_error(kWhere, temporary, "create");
  TemporaryName name{temporary};
  if (!write_all(file.get(), bytes.data(), bytes.size())) io_error(kWhere, temporary, "write");
  if (::fsync(file.get()) != 0) io_error(kWhere, temporary, "flush");
  if (!file.close()) io_error(kWhere, temporary, "close");
  if (::rename(temporary.c_str(), path.c_str()) != 0) io_error(kWhere, path, "replace");
  name.renamed = true;
  // The new name survives a crash only once the folder is on the disk; some file systems cannot.
  const Descriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());
}

std::string read_file(const std::string& path) {
  constexpr const char* kWhere = "state.load";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct ::stat info{};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) io_error(kWhere, path, "open");
  if (!S_ISREG(info.st_mode)) {
    fail(ErrorCode::io, kWhere, "cannot read '", path, "': not a regular file");
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ::ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) io_error(kWhere, path, "read");
    if (got == 0) break;  // it shrank meanwhile: the checksum will say so
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace mhla::streaming
