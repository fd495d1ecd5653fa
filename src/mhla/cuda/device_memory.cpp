// Device memory for programs and tests, through the CUDA runtime.
#include "mhla/core/device_memory.h"

#include <cuda_runtime.h>

#include <cstdio>

#include "mhla/cuda/runtime.h"

namespace mhla {

using cuda::check_call;

std::vector<std::string> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver is an answer, not a failure of the next call
    return {};
  }
  std::vector<std::string> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    check_call(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    char text[512];
    std::snprintf(text, sizeof text, "%s, compute capability %d.%d, %.1f GiB", properties.name,
                  properties.major, properties.minor,
                  static_cast<double>(properties.totalGlobalMem) / (1024.0 * 1024.0 * 1024.0));
    devices.emplace_back(text);
  }
  return devices;
}

void* device_alloc(std::size_t bytes) {
  void* data = nullptr;
  check_call(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}
void device_free(void* data) { check_call(cudaFree(data), "cudaFree"); }
void device_upload(void* device, const void* host, std::size_t bytes) {
  check_call(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  // NOTE: cudaMemcpy may return while the last part is still on its way from a staging buffer.
  check_call(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}
void device_download(void* host, const void* device, std::size_t bytes) {
  check_call(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}
void device_synchronize() { check_call(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

}  // namespace mhla
