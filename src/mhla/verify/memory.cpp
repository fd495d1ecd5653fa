// Host and CUDA memory behind one interface.
#include "mhla/verify/memory.h"

#include <cstring>
#include <new>

#include "mhla/core/device_memory.h"
#include "mhla/mhla.h"

namespace mhla::verify {
namespace {

constexpr std::align_val_t kAlignment{kWorkspaceAlignment};

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

const Memory& host_memory() {
  static const Memory memory{
      .device = Device::cpu(),
      .alloc = [](std::size_t bytes) { return ::operator new(bytes, kAlignment); },
      .free = [](void* data) { ::operator delete(data, kAlignment); },
      .upload = copy,
      .download = copy,
  };
  return memory;
}

const Memory& cuda_memory() {
  static const Memory memory{
      .device = Device::cuda(0),
      .alloc = device_alloc,
      .free =
          [](void* data) {
            // After a kernel has failed every call does; the failure itself is reported elsewhere.
            try {
              device_free(data);
            } catch (const Error&) {
              return;
            }
          },
      .upload = device_upload,
      .download =
          [](void* to, const void* from, std::size_t bytes) {
            device_synchronize();
            device_download(to, from, bytes);
          },
  };
  return memory;
}

const Memory& memory_of(const Device& device) {
  return device.kind == Device::Kind::cuda ? cuda_memory() : host_memory();
}

Allocation allocate(const Memory& memory, std::size_t bytes) {
  // At least one byte, so that an empty tensor still has an address.
  return {memory.alloc(bytes > 0 ? bytes : 1), memory.free};
}

}  // namespace mhla::verify
