// Nameless or temporary file, flush, rename.
#include "mhla/core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "mhla/error.h"

namespace mhla {
namespace {

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// How a file without a name is reached to give it one; it needs /proc.
std::string name_of(int file) { return "/proc/self/fd/" + std::to_string(file); }

int open_nameless(const std::string& path) {
  const int file = ::open(folder_of(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (file < 0 || ::access(name_of(file).c_str(), F_OK) == 0) return file;
  ::close(file);
  return -1;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, const char* where)
    : path_(std::move(path)), where_(where) {
  static std::atomic<unsigned> counter{0};
  // Renaming over a device or a pipe would replace it by a plain file.
  struct ::stat old{};
  if (::stat(path_.c_str(), &old) == 0 && !S_ISREG(old.st_mode)) {
    fail(ErrorCode::io, where_, "cannot replace '", path_, "': not a regular file");
  }
  temporary_ = path_ + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  file_ = open_nameless(path_);
  if (file_ >= 0) return;
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) fail_to("create", path_);
  named_ = true;
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (named_) ::unlink(temporary_.c_str());
}

void AtomicFile::fail_to(const char* action, const std::string& path) const {
  fail(ErrorCode::io, where_, "cannot ", action, " '", path, "': ", std::strerror(errno));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ::ssize_t written = ::write(file_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_to("write", path_);
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(file_) != 0) fail_to("flush", path_);
  if (!named_) {
    if (::linkat(AT_FDCWD, name_of(file_).c_str(), AT_FDCWD, temporary_.c_str(),
                 AT_SYMLINK_FOLLOW) != 0) {
      fail_to("name", temporary_);
    }
    named_ = true;
  }
  if (::close(std::exchange(file_, -1)) != 0) fail_to("close", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_to("replace", path_);
  named_ = false;
  // The new name survives a crash only once the folder is on the disk; some file systems cannot.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace mhla
