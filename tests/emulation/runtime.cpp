// The runtime calls of the emulated device: launches, attributes, descriptions of tensors.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <string>

#include "emulator.h"
#include "mhla/core/device_memory.h"

namespace emulator {
void allow_shared(const void* kernel, int bytes);
namespace {

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

int capability() { return number_of("EMULATED_CAPABILITY", 90); }

// Bytes of a thread block, by the table of compute capabilities in NVIDIA's programming guide.
int most_shared() {
  switch (capability()) {
    case 75: return 64 * 1024;
    case 80:
    case 87: return 163 * 1024;
    case 86:
    case 89:
    case 120:
    case 121: return 99 * 1024;
    default: return kMostShared;
  }
}

}  // namespace
}  // namespace emulator

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* data, const cuuint64_t* extents, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const bool two = type == CU_TENSOR_MAP_DATA_TYPE_UINT16 ||
                   type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ||
                   type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const unsigned element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : two ? 2 : 4;
  if (rank < 1 || rank > 5 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(map) % 64 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *map = CUtensorMap{};
  map->data = static_cast<unsigned char*>(data);
  map->rank = static_cast<std::uint8_t>(rank);
  map->element = static_cast<std::uint8_t>(element);
  map->swizzle = static_cast<std::uint8_t>(swizzle);
  map->magic = emulator::kMagic;
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (extents[i] < 1 || extents[i] > cuuint64_t{1} << 32 || box[i] < 1 || box[i] > 256 ||
        steps[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map->extent[i] = extents[i];
    map->box[i] = static_cast<std::uint16_t>(box[i]);
    if (i == 0) continue;
    if (strides[i - 1] % 16 != 0 || strides[i - 1] >= cuuint64_t{1} << 40) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map->stride[i - 1] = strides[i - 1];
  }
  const unsigned row = box[0] * element, span = 16u << swizzle;
  if (row % 16 != 0 || (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && row > span)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** parameters) {
  emulator::Shape shape{.grid = config->gridDim,
                        .block = config->blockDim,
                        .cluster = {},
                        .shared_bytes = config->dynamicSmemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) shape.together = true;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      emulator::launch_dependent();
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      const auto& dim = attribute.val.clusterDim;
      shape.cluster = {dim.x, dim.y, dim.z};
    }
  }
  emulator::launch(kernel, shape, parameters[0]);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** parameters,
                             std::size_t shared, cudaStream_t) {
  emulator::launch(kernel, {.grid = grid, .block = block, .cluster = {}, .shared_bytes = shared},
                   parameters[0]);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value > emulator::most_shared()) {
    emulator::stop("a kernel wants " + std::to_string(value) +
                   " bytes of shared memory, a thread block may have " +
                   std::to_string(emulator::most_shared()));
  }
  emulator::allow_shared(kernel, value);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return emulator::capability() < 80 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = emulator::capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = emulator::capability() % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = emulator::most_shared(); break;
    case cudaDevAttrMultiProcessorCount:
      *value = emulator::number_of("EMULATED_PROCESSORS", emulator::kProcessors);
      break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t*) {
  return *count = 2, cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned, int,
                                             cudaDriverEntryPointQueryResult* status) {
  *found = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  return *p = mhla::device_alloc(bytes), cudaSuccess;
}
cudaError_t cudaFree(void* p) { return mhla::device_free(p), cudaSuccess; }
