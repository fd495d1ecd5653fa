// The causal backward in one kernel: summaries, mixing and gradients, each by thread blocks of
// their own, a few pairs apart. Counters in memory say how far a pair is.
#pragma once

#include "mhla/cuda/sm80/mixing_pair.cuh"
#include "mhla/cuda/sm90/causal_backward.cuh"
#include "mhla/cuda/sm90/causal_summaries.cuh"

namespace mhla::cuda::sm90 {

// NOTE: as many registers in all as 512 threads get at launch.
inline constexpr int kChainRegisters = 224, kChainLoaderRegisters = 40, kChainIdleRegisters = 24;

// Waits, by one thread, until a counter has come so far.
__device__ __forceinline__ void await_count(const unsigned* counter, unsigned count) {
  for (;;) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(counter) : "memory");
    if (value >= count) return;
    __nanosleep(32);
  }
}
__device__ __forceinline__ void add_count(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(counter) : "memory");
}

// By one thread of a warpgroup: its half of a summary may be written, and is there.
struct SummaryOrder {
  const CausalChainArgs& args;
  __device__ __forceinline__ void await(int pair) const {
    const int before = pair - args.summaries.slots;
    if (before >= 0) await_count(args.read + before, args.summaries.blocks);
    fence_engine();
  }
  __device__ __forceinline__ void done(int pair) const { add_count(args.made + pair); }
};
// By a warp: the summaries of a pair are there, and a tile of them is mixed.
struct MixingOrder {
  static constexpr bool kZeros = false;
  const CausalChainArgs& args;
  __device__ __forceinline__ void await(int pair) const {
    if (threadIdx.x % 32 == 0) {  // two halves of a summary, two kinds of them
      await_count(args.made + pair, 4 * (args.mixing.blocks - 1));
    }
    __syncwarp();
  }
  __device__ __forceinline__ void done(int pair) const {
    fence_engine();
    __syncwarp();
    if (threadIdx.x % 32 == 0) add_count(args.mixed + pair);
  }
};
// By one thread: the summaries of a pair are mixed, and those of a block have been read.
struct GradientOrder {
  const CausalChainArgs& args;
  __device__ __forceinline__ void await(int pair) const {
    await_count(args.mixed + pair, args.mixing.entries / PairMix::kEntries);
    fence_engine();
  }
  __device__ __forceinline__ void done(int pair) const { add_count(args.read + pair); }
};

// The warps of a thread block that mixes.
__device__ __forceinline__ void mix_chained(const CausalChainArgs& args, unsigned char* memory,
                                            CausalShare share) {
  using P = PairMix;
  const int warp = static_cast<int>(threadIdx.x / 32);
  float sum[2][4][4] = {};
  mix_share(args.mixing, memory + warp * P::kStages * P::kStage,
            {share.first * P::kWarps + warp, share.step * P::kWarps}, sum, MixingOrder{args});
  if (args.mixing.partial == nullptr) return;
  store_pair_sums(args.mixing, reinterpret_cast<float*>(memory), share.first, sum,
                  [] { ptx::sync_warps(1, P::kThreads); });
}

inline constexpr int kChainBytes = CausalGradientPlan::kBytes;
static_assert(CausalSummaryPlan::kBytes <= kChainBytes && PairMix::kBytes <= kChainBytes);

}  // namespace mhla::cuda::sm90
