// Stands in for the CUDA backend where it is not compiled: no implementations, no devices.
#include "mhla/core/device_memory.h"
#include "mhla/core/implementation.h"

namespace mhla {
namespace {

[[noreturn]] void refuse(const char* where) {
  fail(ErrorCode::unsupported, where,
       "this build has no CUDA backend (configure with MHLA_CUDA=ON)");
}

}  // namespace

std::vector<const Implementation*> cuda_implementations() { return {}; }

std::vector<std::string> cuda_devices() { return {}; }
void* device_alloc(std::size_t) { refuse("device_alloc"); }
void device_free(void*) { refuse("device_free"); }
void device_upload(void*, const void*, std::size_t) { refuse("device_upload"); }
void device_download(void*, const void*, std::size_t) { refuse("device_download"); }
void device_synchronize() { refuse("device_synchronize"); }

}  // namespace mhla
