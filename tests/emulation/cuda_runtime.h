// Stands in for the CUDA toolkit's header when kernels are compiled for the CPU
// (scripts/emulate-cuda).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ inline
#define __launch_bounds__(...)
#define __align__(n)
#define __shared__ static  // dynamic shared memory: see emulate-cuda

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float __uint_as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::uint32_t __float_as_uint(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
using std::max;
using std::min;

struct Index3 {
  unsigned x, y, z;
};
extern Index3 threadIdx, blockIdx, gridDim;

void emulated_sync_threads();
inline void __syncthreads() { emulated_sync_threads(); }
