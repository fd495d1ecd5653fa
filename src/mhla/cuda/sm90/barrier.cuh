// Barriers in shared memory between the warps that load and the warps that compute.
#pragma once

#include <cstdint>

namespace mhla::cuda::sm90 {

// How often a warp arrives at a barrier: lane 0 does it for all of them, after __syncwarp.
// compute-sanitizer's racecheck follows a barrier only for threads that arrive themselves, so that
// for it every lane does (mhla_every_lane in CMake).
#ifdef MHLA_EVERY_LANE_ARRIVES
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

// arrivals: of threads; those of a warp are kWarpArrivals.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(barrier)
      : "memory");
}
// By all lanes of a warp, after __syncwarp.
__device__ __forceinline__ void warp_arrive(std::uint32_t barrier) {
  if (kWarpArrivals == 32 || threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
// Whether the phase of this parity has completed; a fresh barrier has completed parity 1.
__device__ __forceinline__ bool barrier_passed(std::uint32_t barrier, int parity) {
  std::uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, int parity) {
  while (!barrier_passed(barrier, parity)) {
  }
}

// Arrives once the copies this thread has started so far are done; the thread itself goes on.
__device__ __forceinline__ void arrive_when_copied(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Makes shared memory written by this thread visible to the tensor cores.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// 8 bytes from global to shared memory; zeros when not valid.
__device__ __forceinline__ void copy_async_8(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared), "l"(global),
               "r"(valid ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_16(std::uint32_t shared, const void* global,
                                              bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace mhla::cuda::sm90
