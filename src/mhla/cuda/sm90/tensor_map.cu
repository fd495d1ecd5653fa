// Tensor maps are made by the driver, which is asked for its function at run time: the library does
// not link it.
#include "mhla/cuda/sm90/tensor_map.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace mhla::cuda::sm90 {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 38;  // the engine counts 2^40 bytes

}  // namespace

TensorMapEncoder tensor_map_encoder() {
  static const TensorMapEncoder encoder = [] {
    constexpr unsigned kSince = 12000;  // CUDA version that brought the function
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince,
                                         cudaEnableDefault, &status) != cudaSuccess ||
        status != cudaDriverEntryPointSuccess) {
      cudaGetLastError();  // an old driver is an answer, not a failure of the next call
      found = nullptr;
    }
    return reinterpret_cast<TensorMapEncoder>(found);
  }();
  return encoder;
}

bool make_tensor_map(CUtensorMap& map, const TensorView& view, int columns, int tokens) {
  const TensorMapEncoder encode = tensor_map_encoder();
  if (encode == nullptr || reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return false;

  // The engine's order of dimensions is columns, tokens, heads, batch.
  constexpr int kAxis[] = {3, 1, 2, 0};
  cuuint64_t extents[4], strides[3];
  for (int i = 0; i < 4; ++i) {
    const std::int64_t extent = view.shape[kAxis[i]];
    if (extent < 1) return false;
    extents[i] = static_cast<cuuint64_t>(extent);
    if (i == 0) continue;
    // The stride of a dimension of one is never used, but has to be a valid one.
    const std::int64_t stride = extent == 1 ? 8 : view.strides[kAxis[i]];
    if (stride <= 0 || stride % 8 != 0 || stride >= kMostElements) return false;
    strides[i - 1] = static_cast<cuuint64_t>(stride) * 2;
  }
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(tokens), 1,
                            1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, view.data, extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool make_slice_map(CUtensorMap& map, const SliceTensor& tensor) {
  const TensorMapEncoder encode = tensor_map_encoder();
  if (encode == nullptr || reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) return false;
  cuuint64_t extents[5], strides[4];
  cuuint32_t box[5];
  for (int i = 0; i < 5; ++i) {
    if (tensor.extents[i] < 1) return false;
    extents[i] = static_cast<cuuint64_t>(tensor.extents[i]);
    box[i] = static_cast<cuuint32_t>(tensor.box[i]);
    if (i == 0) continue;
    const std::int64_t stride = tensor.extents[i] == 1 ? 8 : tensor.strides[i - 1];
    if (stride <= 0 || stride % 8 != 0 || stride >= kMostElements) return false;
    strides[i - 1] = static_cast<cuuint64_t>(stride) * 2;
  }
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 5, tensor.data, extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace mhla::cuda::sm90
