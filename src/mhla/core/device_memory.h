// The few calls that programs and tests need to own memory on a CUDA device. The operator itself
// never allocates. Without a CUDA build the list is empty and the rest throws.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mhla {

std::vector<std::string> cuda_devices();  // one line each: name, compute capability, memory

void* device_alloc(std::size_t bytes);  // on the current device, aligned to kWorkspaceAlignment
void device_free(void* data);
void device_upload(void* device, const void* host, std::size_t bytes);
void device_download(void* host, const void* device, std::size_t bytes);
void device_synchronize();

}  // namespace mhla
