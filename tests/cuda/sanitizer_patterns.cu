// Two correct patterns of the Hopper kernels that compute-sanitizer reports, and what silences it.
//
//   nvcc -std=c++20 -arch=sm_90a -lineinfo tests/cuda/sanitizer_patterns.cu -o patterns
//   compute-sanitizer --tool racecheck ./patterns lane    hazards: lane 0 arrives for its warp
//   compute-sanitizer --tool racecheck ./patterns lanes   none: every lane arrives
//   compute-sanitizer --tool memcheck ./patterns own      errors: a bulk copy to the sender
//   compute-sanitizer --tool memcheck ./patterns other    none: the same copy to the neighbour
//
// Every pattern checks its own result and exits 1 when it is wrong. `lane` is how our kernels are
// built, `lanes` what libmhla_every_lane has for racecheck (docs/verification.md). See
// docs/kernels/dense.md and docs/kernels/fused.md.
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace {

__device__ void init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
__device__ void arrive(std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(barrier)
      : "memory");
}
__device__ void wait(std::uint32_t barrier, int parity) {
  std::uint32_t passed = 0;
  while (passed == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
__device__ std::uint32_t address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

constexpr int kRounds = 64;

// A warp fills a buffer, another reads it; `full` and `empty` order both directions. __syncwarp
// orders the accesses of all lanes before the arrival of lane 0.
template <bool kEveryLane>
__global__ void ring(float* out) {
  __shared__ volatile float buffer[32];
  __shared__ __align__(8) std::uint64_t barriers[2];
  const std::uint32_t full = address(&barriers[0]), empty = address(&barriers[1]);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    init(full, kEveryLane ? 32 : 1);
    init(empty, kEveryLane ? 32 : 1);
  }
  __syncthreads();
  const auto leave = [&](std::uint32_t barrier) {
    __syncwarp();
    if (kEveryLane || lane == 0) arrive(barrier);
  };
  float sum = 0.f;
  for (int i = 0; i < kRounds; ++i) {
    if (threadIdx.x < 32) {
      wait(empty, (i & 1) ^ 1);
      buffer[lane] = static_cast<float>(i + lane);
      leave(full);
    } else {
      wait(full, i & 1);
      sum += buffer[31 - lane];
      leave(empty);
    }
  }
  if (threadIdx.x >= 32) out[lane] = sum;
}

// Both thread blocks of a cluster send 32 numbers to the neighbour, or to themselves.
template <bool kOwn>
__global__ void __cluster_dims__(2) send(float* out) {
  __shared__ __align__(128) float from[32];
  __shared__ __align__(128) float to[32];
  __shared__ __align__(8) std::uint64_t barrier;
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  from[threadIdx.x] = static_cast<float>(rank * 100 + threadIdx.x);
  if (threadIdx.x == 0) {
    init(address(&barrier), 1);
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;\n" ::"r"(address(&barrier))
        : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
  if (threadIdx.x == 0) {
    const std::uint32_t other = kOwn ? rank : rank ^ 1u;
    std::uint32_t place, there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
                 : "=r"(place)
                 : "r"(address(to)), "r"(other));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
                 : "=r"(there)
                 : "r"(address(&barrier)), "r"(other));
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, "
        "[%2];\n" ::"r"(place),
        "r"(address(from)), "r"(there)
        : "memory");
  }
  wait(address(&barrier), 0);
  out[rank * 32 + threadIdx.x] = to[threadIdx.x];
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

}  // namespace

int main(int count, char** words) {
  const std::string_view what = count > 1 ? words[1] : "";
  const bool sends = what == "own" || what == "other";
  if (!sends && what != "lane" && what != "lanes") {
    std::fprintf(stderr, "usage: patterns lane|lanes|own|other\n");
    return 2;
  }
  float *out, host[64] = {};
  cudaMalloc(&out, sizeof host);
  if (what == "lane") ring<false><<<1, 64>>>(out);
  if (what == "lanes") ring<true><<<1, 64>>>(out);
  if (what == "own") send<true><<<2, 32>>>(out);
  if (what == "other") send<false><<<2, 32>>>(out);
  cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  const cudaError_t error = cudaGetLastError();
  int wrong = 0;
  for (int i = 0; i < (sends ? 64 : 32); ++i) {
    const int rank = what == "own" ? i / 32 : 1 - i / 32;
    const int expected = sends ? rank * 100 + i % 32
                               : kRounds * (kRounds - 1) / 2 + kRounds * (31 - i);
    wrong += host[i] != static_cast<float>(expected);
  }
  std::printf("%s: %d wrong, %s\n", words[1], wrong, cudaGetErrorString(error));
  return wrong == 0 && error == cudaSuccess ? 0 : 1;
}
