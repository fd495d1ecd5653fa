// What the kernels of token_maps.h share: [B, N, H, D] as chunks of 16 bytes.
#pragma once

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/runtime.h"
#include "mhla/token_maps.h"

namespace mhla::cuda {

struct Rows {
  char* data;
  std::int64_t batch, token, head;  // bytes

  __device__ Chunk* at(std::int64_t b, std::int64_t n, int h, int chunk) const {
    return reinterpret_cast<Chunk*>(data + b * batch + n * token + h * head + chunk * 16);
  }
};

inline Rows rows_of(const TensorView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  return {static_cast<char*>(x.data), x.strides[0] * bytes, x.strides[1] * bytes,
          x.strides[2] * bytes};
}

}  // namespace mhla::cuda
