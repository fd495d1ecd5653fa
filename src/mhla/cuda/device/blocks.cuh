// A block of a layout as kernels see it, and strided [B, N, H, D] tensors.
#pragma once

#include <cstdint>

namespace mhla::cuda {

// The box of mhla::Block with 32-bit numbers (token counts are below 2^31).
struct DeviceBlock {
  int first;     // token number of its first token
  int count;     // tokens
  int index;     // row or column of the mixing matrix
  int line;      // extent[2]
  int plane;     // extent[1] * extent[2]
  int stride0;   // token strides of the two outer axes
  int stride1;
  // Slots: positions inside the largest box of the layout, so that one slot means the same
  // coordinates in every block (the shared_position normaliser pairs tokens by them).
  int slot_line;
  int slot_plane;

  __device__ __forceinline__ int token(int position) const {
    if (line == count) return first + position;
    const int a = position / plane, rest = position - a * plane;
    const int y = rest / line;
    return first + a * stride0 + y * stride1 + (rest - y * line);
  }
  __device__ __forceinline__ int slot(int position) const {
    if (line == count) return position;
    const int a = position / plane, rest = position - a * plane;
    const int y = rest / line;
    return a * slot_plane + y * slot_line + (rest - y * line);
  }
};

// [B, N, H, D] with any strides and a contiguous last dimension; strides count elements.
struct RowTensor {
  void* data;
  std::int64_t batch_stride, token_stride, head_stride;
  int vectors;  // rows start on 16-byte boundaries and hold whole chunks

  template <typename T>
  __device__ __forceinline__ T* head(int b, int h) const {
    return static_cast<T*>(data) + b * batch_stride + h * head_stride;
  }
};

}  // namespace mhla::cuda
