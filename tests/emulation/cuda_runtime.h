// Stands in for the CUDA toolkit's header when kernels are compiled for the CPU
// (scripts/emulate-cuda): the language, its intrinsics, and the runtime calls this library makes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ptx.h"

#define __device__
#define __host__
#define __global__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
#define __restrict__

struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline float __uint_as_float(std::uint32_t bits) { return emulator::bits_to<float>(bits); }
inline float __int_as_float(int bits) { return emulator::bits_to<float>(bits); }
inline std::uint32_t __float_as_uint(float x) { return emulator::bits_to<std::uint32_t>(x); }
inline int __float_as_int(float x) { return emulator::bits_to<int>(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned order) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (order >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
using std::isnan;
using std::max;
using std::min;

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
void __stcg(T* p, T x) {
  *p = x;
}
template <typename T>
void __stcs(T* p, T x) {
  *p = x;
}
template <typename T>
T atomicAdd(T* p, T x) {
  const T before = *p;
  *p = before + x;
  return before;
}

using emulator::blockDim;
using emulator::blockIdx;
using emulator::gridDim;
using emulator::threadIdx;
using dim3 = emulator::Index3;

inline void __syncthreads() { emulator::sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::sync_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emulator::pause(); }
template <typename T>
T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  const int self = emulator::lane();
  return emulator::shuffle(mask, x, (self & ~(width - 1)) | (lane & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int lanes, int = 32) {
  return emulator::shuffle(mask, x, emulator::lane() ^ lanes);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T x, int by, int width = 32) {
  const int to = emulator::lane() + by;
  return emulator::shuffle(mask, x, to / width == emulator::lane() / width ? to : emulator::lane());
}
template <typename T>
T __shfl_up_sync(unsigned mask, T x, int by, int width = 32) {
  const int self = emulator::lane();
  return emulator::shuffle(mask, x, self % width >= by ? self - by : self);
}
inline unsigned __ballot_sync(unsigned mask, int x) { return emulator::ballot(mask, x != 0); }
inline int __any_sync(unsigned mask, int x) { return emulator::ballot(mask, x != 0) != 0; }
inline int __all_sync(unsigned mask, int x) { return emulator::ballot(mask, x == 0) == 0; }
inline std::size_t __cvta_generic_to_shared(const void* p) { return emulator::shared_address(p); }

// Memory of the emulated device is the host's.
enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorInvalidDeviceFunction,
  cudaErrorNoKernelImageForDevice,
  cudaErrorInvalidPtx,
  cudaErrorUnsupportedPtxVersion,
  cudaErrorJitCompilerNotFound
};
using cudaStream_t = struct Stream*;
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrL2CacheSize
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointNotFound };
enum { cudaEnableDefault };
enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeCooperative,
  cudaLaunchAttributeClusterDimension
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed, cooperative;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void** parameters);
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** parameters,
                             std::size_t shared, cudaStream_t);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value);
template <typename Args>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Args), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(emulator::opaque(kernel), attribute, value);
}
struct cudaFuncAttributes {};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device);
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t*);
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, int,
                                             cudaDriverEntryPointQueryResult*);
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int,
                                                                 std::size_t) {
  *n = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "refused by the emulator"; }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  return std::memmove(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memmove(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  return std::memset(to, value, bytes), cudaSuccess;
}
cudaError_t cudaMalloc(void** p, std::size_t bytes);
cudaError_t cudaFree(void* p);
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
