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

#define __grid_constant__

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int __ffs(int x) { return __builtin_ffs(x); }
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

// Memory of the emulated device is the host's.
using cudaStream_t = void*;
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                           cudaStream_t) {
  std::memmove(to, from, bytes);
  return 0;
}
inline int cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return 0;
}
inline int cudaStreamSynchronize(cudaStream_t) { return 0; }
inline void cudaFree(void* p) { std::free(p); }
