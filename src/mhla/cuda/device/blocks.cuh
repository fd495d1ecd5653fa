// A block of a layout as kernels see it, and strided [B, N, H, D] tensors.
#pragma once

#include <cstdint>

namespace mhla::cuda {

// The box of mhla::Block with 32-bit numbers (token counts are below 2^31).
struct DeviceBlock {
  int first;    // token number of its first token
  int count;    // tokens
  int index;    // row or column of the mixing matrix
  int line;     // extent[2]
  int plane;    // extent[1] * extent[2]
  int stride0;  // token strides of the two outer axes
  int stride1;
  // Slots: positions inside the largest box of the layout, so that one slot means the same
  // coordinates in every block (the shared_position normaliser pairs tokens by them).
  int slot_line;
  int slot_plane;

  std::uint64_t plane_inverse;  // ceil(2^64 / plane)
  std::uint64_t line_inverse;

  __device__ __forceinline__ int token(int position) const {
    if (line == count) return first + position;
    int a, y, x;
    split(position, a, y, x);
    return first + a * stride0 + y * stride1 + x;
  }
  __device__ __forceinline__ int slot(int position) const {
    if (line == count) return position;
    int a, y, x;
    split(position, a, y, x);
    return a * slot_plane + y * slot_line + x;
  }

 private:
  // position / n by multiplication: exact for 32-bit numbers, n > 1.
  static __device__ __forceinline__ int divide(int position, std::uint64_t inverse) {
    const auto p = static_cast<std::uint32_t>(position);
    const std::uint64_t low = __umulhi(p, static_cast<std::uint32_t>(inverse));
    return static_cast<int>((p * (inverse >> 32) + low) >> 32);
  }
  __device__ __forceinline__ void split(int position, int& a, int& y, int& x) const {
    a = plane == count ? 0 : plane == 1 ? position : divide(position, plane_inverse);
    const int rest = position - a * plane;
    y = line == 1 ? rest : divide(rest, line_inverse);
    x = rest - y * line;
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
