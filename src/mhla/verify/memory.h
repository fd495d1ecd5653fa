// Where a case's tensors live: host memory, or a CUDA device reached through core/device_memory.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "mhla/tensor_view.h"

namespace mhla::verify {

struct Memory {
  Device device;
  std::function<void*(std::size_t)> alloc;  // aligned to kWorkspaceAlignment
  std::function<void(void*)> free;
  std::function<void(void*, const void*, std::size_t)> upload;    // to memory, from host
  std::function<void(void*, const void*, std::size_t)> download;  // to host, from memory; waits
};

const Memory& host_memory();
const Memory& cuda_memory();  // of device 0
const Memory& memory_of(const Device& device);

// Owns bytes in a Memory.
using Allocation = std::unique_ptr<void, std::function<void(void*)>>;
Allocation allocate(const Memory& memory, std::size_t bytes);

}  // namespace mhla::verify
