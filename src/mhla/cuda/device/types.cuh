// Storage types of tiles and their conversions, 16 bytes (a chunk) at a time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/device/ptx.cuh"

namespace mhla::cuda {

struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};
// The same numbers for kernels that keep everything else in f32: heads of a few columns, whose
// results have too few terms for roundings on the way to average out.
struct small_bf16 : bf16 {};
struct small_f16 : f16 {};
// f32 in memory, multiplied on the tensor cores with 11 significant bits: as many as f16 has, with
// the range of f32. Summaries and scaled gradients of f16 problems are kept so.
struct tf32 {
  float value;
};

// What rows of inputs T, and phi of them, are in shared memory.
template <typename T>
using TileOf =
    std::conditional_t<std::is_same_v<T, small_bf16> || std::is_same_v<T, small_f16>, float, T>;

// What summaries, scores and scaled gradients are stored as when inputs are T.
template <typename T>
struct SummaryOf;
template <>
struct SummaryOf<bf16> {
  using type = bf16;
};
template <>
struct SummaryOf<f16> {
  using type = tf32;
};
template <>
struct SummaryOf<float> {
  using type = float;
};
template <>
struct SummaryOf<small_bf16> {
  using type = float;
};
template <>
struct SummaryOf<small_f16> {
  using type = float;
};

struct alignas(16) Chunk {
  std::uint32_t word[4];
};
template <typename T>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(T));  // elements of a chunk

__device__ __forceinline__ float to_float(bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(f16 x) { return ptx::from_f16(x.bits); }
__device__ __forceinline__ float to_float(tf32 x) { return x.value; }
__device__ __forceinline__ float to_float(float x) { return x; }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return {static_cast<std::uint16_t>(ptx::pack_bf16(x, 0.f))};
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return {static_cast<std::uint16_t>(ptx::pack_f16(x, 0.f))};
}
template <>
__device__ __forceinline__ small_bf16 from_float<small_bf16>(float x) {
  return {from_float<bf16>(x)};
}
template <>
__device__ __forceinline__ small_f16 from_float<small_f16>(float x) {
  return {from_float<f16>(x)};
}
template <>
__device__ __forceinline__ tf32 from_float<tf32>(float x) {
  return {x};
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

template <typename To, typename From>
__device__ __forceinline__ To converted(From x) {
  if constexpr (std::is_same_v<To, From>) return x;
  else return from_float<To>(to_float(x));
}

// Stores two neighbours at once; p is aligned to the pair.
template <typename T>
__device__ __forceinline__ void store_pair(T* p, float x, float y) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(p) = make_float2(x, y);
  } else {
    T pair[2] = {from_float<T>(x), from_float<T>(y)};
    *reinterpret_cast<std::uint32_t*>(p) = static_cast<std::uint32_t>(pair[0].bits) |
                                           (static_cast<std::uint32_t>(pair[1].bits) << 16);
  }
}
template <typename T>
__device__ __forceinline__ float2 load_pair(const T* p) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float2*>(p);
  } else {
    const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(p);
    return make_float2(to_float(T{static_cast<std::uint16_t>(word)}),
                       to_float(T{static_cast<std::uint16_t>(word >> 16)}));
  }
}

template <typename T>
__device__ __forceinline__ void unpack(const Chunk& chunk, float (&x)[kChunk<T>]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = __uint_as_float(chunk.word[i]);
    } else {
      x[2 * i] = to_float(T{static_cast<std::uint16_t>(chunk.word[i])});
      x[2 * i + 1] = to_float(T{static_cast<std::uint16_t>(chunk.word[i] >> 16)});
    }
  }
}
template <typename T>
__device__ __forceinline__ Chunk pack(const float (&x)[kChunk<T>]) {
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      chunk.word[i] = __float_as_uint(x[i]);
    } else {
      static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
      if constexpr (std::is_same_v<T, bf16>) {
        chunk.word[i] = ptx::pack_bf16(x[2 * i], x[2 * i + 1]);
      } else {
        chunk.word[i] = ptx::pack_f16(x[2 * i], x[2 * i + 1]);
      }
    }
  }
  return chunk;
}

}  // namespace mhla::cuda
