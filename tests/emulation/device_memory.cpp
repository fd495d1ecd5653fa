// Device memory of the emulator: each allocation ends at a page nobody may touch.
#include "mhla/core/device_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

#include "emulator.h"

namespace mhla {
namespace {

constexpr std::size_t kPage = 4096;
std::map<void*, std::pair<void*, std::size_t>>& mappings() {
  static std::map<void*, std::pair<void*, std::size_t>> all;
  return all;
}

}  // namespace

std::vector<std::string> cuda_devices() { return {"emulated"}; }
void* device_alloc(std::size_t bytes) {
  // NOTE: aligned as cudaMalloc does, so up to 255 bytes past the end stay readable.
  const std::size_t padded = (bytes + 255) / 256 * 256;
  const std::size_t mapped = (padded + kPage - 1) / kPage * kPage;
  auto* base = static_cast<unsigned char*>(mmap(nullptr, mapped + 2 * kPage, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(base, kPage, PROT_NONE);
  mprotect(base + kPage + mapped, kPage, PROT_NONE);
  std::memset(base + kPage, 0xff, mapped);
  void* data = base + kPage + mapped - padded;
  mappings()[data] = {base, mapped + 2 * kPage};
  return data;
}
void device_free(void* data) {
  if (data == nullptr) return;
  const auto found = mappings().find(data);
  munmap(found->second.first, found->second.second);
  mappings().erase(found);
}
// As if by a kernel that may not have ended yet.
void device_upload(void* device, const void* host, std::size_t bytes) {
  std::memcpy(device, host, bytes);
  emulator::note_written(static_cast<const unsigned char*>(device), bytes);
}
void device_download(void* host, const void* device, std::size_t bytes) {
  std::memcpy(host, device, bytes);
}
void device_synchronize() {}

}  // namespace mhla
