// The CUDA runtime as this library uses it: checked calls, launches, tables on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/device_memory.h"
#include "mhla/error.h"
#include "mhla/problem.h"

namespace mhla::cuda {

// What gives a build code for other GPUs than Hopper.
inline constexpr char kPortable[] =
    "with MHLA_CUDA_PORTABLE=ON there is code for compute capability 8.0 and newer";

inline void check_call(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail(ErrorCode::device, "cuda", what, ": ", cudaGetErrorString(status),
       status == cudaErrorNoKernelImageForDevice ? std::string(" (") + kPortable + ")" : "");
}

inline int device_attribute(int device, cudaDeviceAttr which) {
  int value = 0;
  check_call(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}
// Bytes of shared memory that one thread block of a device may have.
inline int shared_memory(int device) {
  return device_attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
}
inline int multiprocessors(int device) {
  return device_attribute(device, cudaDevAttrMultiProcessorCount);
}

// What the code that a device runs was compiled for: 90 on Hopper, else 80, which the driver
// translates for GPUs after Hopper; 0 where this library has none for it.
int code_version(int device);
// Why a problem that lives there cannot be served by code of that version; nothing where it can.
std::optional<std::string> device_refuses(const Device& device, int least = 80);

// Makes a device current for as long as the guard lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check_call(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check_call(cudaSetDevice(device), "cudaSetDevice");
    changed_ = before_ != device;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

// Shared memory past 48 KB has to be asked for, per kernel and device. The limit is only ever
// raised: plans of other shapes share the kernel.
inline void allow_shared(const void* kernel, int bytes) {
  constexpr int kFree = 40 * 1024;  // leaves room for static shared memory
  if (bytes <= kFree) return;
  int device = 0;
  check_call(cudaGetDevice(&device), "cudaGetDevice");
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> allowed;
  const std::lock_guard lock(mutex);
  int& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  check_call(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute(shared memory)");
  most = bytes;
}

// dependent: the kernel may begin before the previous kernel of the stream has ended, and waits for
// it (ptx::begin_after_previous) before it touches what kernels of the same call make.
template <typename Args>
void launch(void (*kernel)(Args), const Grid& grid, int threads, int shared_bytes, void* stream,
            const Args& args, bool dependent = false) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    fail(ErrorCode::unsupported, "cuda", "grid of ", grid.x, " x ", grid.y, " x ", grid.z,
         " thread blocks");
  }
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                        static_cast<unsigned>(grid.z));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = dependent ? 1 : 0;
  Args copy = args;
  void* parameters[] = {&copy};
  check_call(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), parameters),
             "cudaLaunchKernelExC");
}

// A host table copied to the current device; freed with the last reference.
template <typename T>
class DeviceTable {
 public:
  DeviceTable() = default;
  explicit DeviceTable(const std::vector<T>& host) : size_(static_cast<int>(host.size())) {
    if (host.empty()) return;
    const std::size_t bytes = host.size() * sizeof(T);
    data_ = std::shared_ptr<void>(device_alloc(bytes), [](void* p) {
      // NOTE: a table may outlive the driver at the end of the process; nothing to do then.
      cudaFree(p);
    });
    device_upload(data_.get(), host.data(), bytes);
  }
  const T* data() const { return static_cast<const T*>(data_.get()); }
  int size() const { return size_; }

 private:
  std::shared_ptr<void> data_;
  int size_ = 0;
};

}  // namespace mhla::cuda
