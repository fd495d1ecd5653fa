// Which of the code in this library a device runs.
#include <map>
#include <mutex>
#include <string>

#include "mhla/cuda/runtime.h"

namespace mhla::cuda {
namespace {

// Stands for all kernels that are not Hopper's alone.
__global__ void portable_kernel() {}

struct DeviceCode {
  int version;          // as code_version has it
  std::string missing;  // why there is none
};

DeviceCode find_code(int device) {
  const DeviceGuard guard(device);
  const int major = device_attribute(device, cudaDevAttrComputeCapabilityMajor);
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes,
                                                   reinterpret_cast<const void*>(portable_kernel));
  std::string way_out;
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      way_out = major < 8 ? "8.0 and newer are served" : kPortable;
      break;
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
      way_out = "a driver that is not older than the nvcc of this build translates it";
      break;
    default: check_call(status, "cudaFuncGetAttributes"); return {major == 9 ? 90 : 80, ""};
  }
  cudaGetLastError();  // an answer, not a failure of the next call
  const int minor = device_attribute(device, cudaDevAttrComputeCapabilityMinor);
  return {0, "this build has no code for compute capability " + std::to_string(major) + "." +
                 std::to_string(minor) + ": " + cudaGetErrorString(status) + " (" + way_out + ")"};
}

DeviceCode code_of(int device) {
  static std::mutex mutex;
  static std::map<int, DeviceCode> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  return found != known.end() ? found->second : known[device] = find_code(device);
}

}  // namespace

int code_version(int device) { return code_of(device).version; }

std::optional<std::string> device_refuses(const Device& device, int least) {
  if (device.kind != Device::Kind::cuda) return "runs on CUDA devices";
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();  // an answer, not a failure of the next call
    return std::string("there is no such CUDA device: ") + cudaGetErrorString(status);
  }
  if (count <= device.index) {
    return "there is no such CUDA device: " + std::to_string(count) + " are known, from 0";
  }
  const DeviceCode code = code_of(device.index);
  if (code.version >= least) return std::nullopt;
  if (code.version == 0) return code.missing;
  const auto number = [&](cudaDeviceAttr which) {
    return std::to_string(device_attribute(device.index, which));
  };
  return "is compiled for compute capability " + std::to_string(least / 10) +
         ".0 alone, this device has " + number(cudaDevAttrComputeCapabilityMajor) + "." +
         number(cudaDevAttrComputeCapabilityMinor);
}

}  // namespace mhla::cuda
