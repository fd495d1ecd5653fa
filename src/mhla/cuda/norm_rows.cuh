// What the kernels of norms.h share: rows of tokens and vectors of parameters, a piece of kC
// elements at a time, and how lanes are given to a row.
#pragma once

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/runtime.h"
#include "mhla/tensor_view.h"

namespace mhla::cuda {

// [B, N, C]
struct NormRows {
  char* data;
  std::int64_t batch, token;  // bytes

  __device__ char* at(int b, int n) const { return data + b * batch + n * token; }
};

// [B, C] or [C], of any type; data is null where there is none.
struct NormVector {
  const char* data;
  std::int64_t batch;  // bytes
  DType type;
};

inline NormRows norm_rows(const TensorView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  return {static_cast<char*>(x.data), x.strides[0] * bytes, x.strides[1] * bytes};
}

inline NormVector norm_vector(const TensorView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  return {static_cast<const char*>(x.data), x.rank == 2 ? x.strides[0] * bytes : 0, x.dtype};
}

// kC elements of type T: one chunk, two (f32 beside 16-bit rows), or half of one.
template <typename T, int kC>
struct Piece {
  static constexpr int kBytes = kC * static_cast<int>(sizeof(T));
  static constexpr int kWords = kBytes / 4;
  std::uint32_t word[kWords];

  __device__ __forceinline__ void load(const char* row, int piece) {
    const char* p = row + piece * kBytes;
    if constexpr (kBytes == 8) {
      const auto w = *reinterpret_cast<const uint2*>(p);
      word[0] = w.x, word[1] = w.y;
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const auto w = *reinterpret_cast<const uint4*>(p + 16 * i);
        word[4 * i] = w.x, word[4 * i + 1] = w.y, word[4 * i + 2] = w.z, word[4 * i + 3] = w.w;
      }
    }
  }
  __device__ __forceinline__ void fill(float value) {
    float x[kC];
#pragma unroll
    for (int i = 0; i < kC; ++i) x[i] = value;
    set(x);
  }
  __device__ __forceinline__ void store(char* row, int piece) const {
    char* p = row + piece * kBytes;
    if constexpr (kBytes == 8) {
      *reinterpret_cast<uint2*>(p) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        *reinterpret_cast<uint4*>(p + 16 * i) = make_uint4(word[4 * i], word[4 * i + 1],
                                                           word[4 * i + 2], word[4 * i + 3]);
      }
    }
  }
  __device__ __forceinline__ void get(float (&x)[kC]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        x[i] = __uint_as_float(word[i]);
      } else {
        x[2 * i] = to_float(T{static_cast<std::uint16_t>(word[i])});
        x[2 * i + 1] = to_float(T{static_cast<std::uint16_t>(word[i] >> 16)});
      }
    }
  }
  __device__ __forceinline__ void set(const float (&x)[kC]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        word[i] = __float_as_uint(x[i]);
      } else if constexpr (std::is_same_v<T, bf16>) {
        word[i] = ptx::pack_bf16(x[2 * i], x[2 * i + 1]);
      } else {
        word[i] = ptx::pack_f16(x[2 * i], x[2 * i + 1]);
      }
    }
  }
};

template <int kC>
__device__ __forceinline__ void load_vector(const NormVector& v, int b, int piece, float (&x)[kC]) {
  const char* row = v.data + b * v.batch;
  const auto read = [&](auto type) {
    Piece<decltype(type), kC> each;
    each.load(row, piece);
    each.get(x);
  };
  switch (v.type) {
    case DType::bf16: return read(bf16{});
    case DType::f16: return read(f16{});
    default: return read(0.f);
  }
}

// Over the lanes of a row, which are a power of two; every one gets the sum, in the same order.
__device__ __forceinline__ float row_sum(float x, int lanes) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (step < lanes) x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

// A row of `pieces` is `lanes` threads with `each` pieces a thread.
struct RowSplit {
  int lanes, each;
};

// The fewest idle lanes, then up to four pieces a lane: a thread has to ask for that much at once
// to keep the memory busy.
template <int kMost>
inline RowSplit split_row(int pieces) {
  RowSplit best{32, kMost};
  int least = 0x7fffffff;
  for (int lanes = 32; lanes >= 1; lanes /= 2) {
    const int each = (pieces + lanes - 1) / lanes;
    if (each > kMost) break;
    const int idle = lanes * each - pieces;
    if (lanes < 32 && each > 4) break;
    if (idle <= least) best = {lanes, each}, least = idle;
  }
  return best;
}

}  // namespace mhla::cuda
