// Whole files, written so that a crash leaves the old one in place.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "mhla/core/atomic_file.h"
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

 private:
  int fd_;
};

}  // namespace

void write_file(const std::string& path, const std::string& bytes) {
  AtomicFile file(path, "state.save");
  file.write(bytes.data(), bytes.size());
  file.commit();
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
