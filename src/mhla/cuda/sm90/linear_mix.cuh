// The second pass on Hopper for up to 64, 160 or 256 blocks: S~ = m S (Eq. 5), 64 entries of all
// summaries of a pair at a time. The entries are the rows of the product, the blocks that are
// written its columns.
#pragma once

#include "mhla/cuda/sm90/linear_tile.cuh"

namespace mhla::cuda::sm90 {

// kBlocks rows of 128 bytes: 64 weights or entries each. Results leave from where the slab was.
template <int kBlocks_>
struct SlabMemory {
  static constexpr int kBlocks = kBlocks_, kStages = kBlocks == 64 ? 16 : kBlocks == 160 ? 7 : 3;
  static constexpr int kGroups = kBlocks == 256 ? 2 : 3, kThreads = kGroups * 128 + 128;
  static constexpr int kRegisters = kBlocks == 256 ? 232 : 152,
                       kMoverRegisters = kBlocks == 256 ? 40 : 56;
  static constexpr bool kPrepared = kBlocks > 64;  // weights
  static constexpr int kSlab = kBlocks * 128, kHalves = (kBlocks + 63) / 64,
                       kWeights = kHalves * kSlab;
  static constexpr int kUsed = kWeights + kStages * kSlab + (3 * kStages + 1) * 8;
  static constexpr int kBytes = kUsed + 1024;
  static_assert(kSlab % 1024 == 0 && kBytes <= 227 * 1024);

  std::uint32_t base;

  __device__ __forceinline__ explicit SlabMemory(const byte* shared)
      : base((ptx::shared_address(shared) + 1023u) & ~1023u) {}
  __device__ __forceinline__ std::uint32_t slab(int stage) const {
    return base + kWeights + stage * kSlab;
  }
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return slab(kStages) + stage * 8;
  }
  __device__ __forceinline__ std::uint32_t ready(int stage) const { return full(kStages + stage); }
  __device__ __forceinline__ std::uint32_t empty(int stage) const {
    return full(2 * kStages + stage);
  }
  __device__ __forceinline__ std::uint32_t weights_full() const { return full(3 * kStages); }
};

// From the last pair to the first: the summaries made last are the ones that the L2 cache still
// has, and what is mixed last is read first.
__device__ __forceinline__ SlicePlace slab_place(const SlabArgs& args, int task) {
  const int from_end = static_cast<int>(args.by_slabs.divide(static_cast<unsigned>(task)));
  return {(task - from_end * args.slabs) * 64, 0, args.pairs - 1 - from_end, 0, 0};
}

template <typename M>
__device__ __forceinline__ void load_slabs(const SlabArgs& args, const M& memory) {
  if constexpr (M::kPrepared) {
    barrier_expect(memory.weights_full(), M::kWeights);
    for (int half = 0; half < M::kHalves; ++half) {
      load_slice(memory.base + half * M::kSlab, args.weights, {half * 64, 0, 0, 0, 0},
                 memory.weights_full());
    }
  }
  Turn stage;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.pairs * args.slabs; task += gridDim.x) {
    barrier_wait(memory.empty(stage.index), stage.parity ^ 1);
    barrier_expect(memory.full(stage.index), M::kSlab);
    load_slice(memory.slab(stage.index), args.in, slab_place(args, task), memory.full(stage.index));
    stage.advance(M::kStages);
  }
}
template <typename M>
__device__ __forceinline__ void store_slabs(const SlabArgs& args, const M& memory) {
  Turn stage;
  int leaving = -1;  // small slabs: the next is stored while this one is still being read
#pragma unroll 1
  for (int task = blockIdx.x; task < args.pairs * args.slabs; task += gridDim.x) {
    barrier_wait(memory.ready(stage.index), stage.parity);
    store_slice(args.out, slab_place(args, task), memory.slab(stage.index));
    stores_commit();
    if constexpr (M::kStages > 8) {
      store_wait_read<1>();
      if (leaving >= 0) barrier_arrive(memory.empty(leaving));
      leaving = stage.index;
    } else {
      store_wait_read();
      barrier_arrive(memory.empty(stage.index));
    }
    stage.advance(M::kStages);
  }
  store_wait();
}

// The computing warps round up to 64 x 64 weights to bf16, as the copy engine would lay them out.
template <typename M>
__device__ __forceinline__ void take_weights(const SlabArgs& args, const M& memory) {
  constexpr int kThreads = M::kGroups * 128, kPairs = 64 * 32, kTurns = kPairs / kThreads + 1;
  float2 pairs[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int n = static_cast<int>(threadIdx.x) + i * kThreads, row = n / 32, column = n % 32 * 2;
    const auto weight = [&](int c) {
      const bool is_read = row < args.rows && c < args.columns && (!args.lower || c <= row);
      return is_read ? __ldcg(args.mixing + row * args.row_stride + c * args.column_stride) : 0.f;
    };
    pairs[i] = make_float2(weight(column), weight(column + 1));
  }
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int n = static_cast<int>(threadIdx.x) + i * kThreads, row = n / 32, column = n % 32 * 2;
    if (n >= kPairs) break;
    store_word(memory.base + row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2,
               ptx::pack_bf16(pairs[i].x, pairs[i].y));
  }
  fence_async();
  ptx::sync_warps(1, kThreads);
}

// Columns of a product: as many as there are blocks, 128 and 32 or all at once.
template <int kBlocks>
struct SlabSum {
  static constexpr int kFirst = kBlocks == 160 ? 128 : kBlocks;
  float first[kFirst / 2], rest[16];

  // += 16 blocks that are read. kTransposed: weights are [read][written].
  template <bool kTransposed, bool kAccumulate>
  __device__ __forceinline__ void add(const std::uint32_t (&a)[4], std::uint32_t weights,
                                      int step) {
    constexpr int kSlab = kBlocks * 128;
    if constexpr (kTransposed) {
      wgmma<bf16, kFirst, true, kAccumulate>(first, a, inner_rows<kSlab>(weights, step));
      if constexpr (kBlocks > kFirst) {
        wgmma<bf16, 32, true, kAccumulate>(rest, a, inner_rows<kSlab>(weights + 2 * kSlab, step));
      }
    } else {
      wgmma<bf16, kFirst, false, kAccumulate>(first, a, inner_columns<kSlab>(weights, step));
      if constexpr (kBlocks > kFirst) {
        wgmma<bf16, 32, false, kAccumulate>(rest, a,
                                            inner_columns<kSlab>(weights + 128 * 128, step));
      }
    }
  }
  // Of blocks 8 * group and on.
  __device__ __forceinline__ const float* of(int group) const {
    return group * 8 < kFirst ? first + group * 4 : rest + (group * 8 - kFirst) / 2;
  }
};

template <int kBlocks, bool kTransposed>
__global__ void __launch_bounds__(SlabMemory<kBlocks>::kThreads, 1)
    mix_slabs(const __grid_constant__ SlabArgs args) {
  using M = SlabMemory<kBlocks>;
  constexpr int kSteps = kBlocks / 16, kAtOnce = kSteps / 2;  // fragments in registers
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  if (threadIdx.x == 32) {
    prefetch_map(args.in);
    prefetch_map(args.out);
    if (M::kPrepared) prefetch_map(args.weights);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < M::kStages; ++i) {
      barrier_init(memory.full(i), 1);
      barrier_init(memory.ready(i), 4 * kWarpArrivals);
      barrier_init(memory.empty(i), 1);
    }
    barrier_init(memory.weights_full(), 1);
    fence_barriers();
  }
  __syncthreads();
  if (threadIdx.x / 128 == M::kGroups || !args.early) ptx::begin_after_previous();
  if (threadIdx.x / 128 == M::kGroups) {
    give_registers<M::kMoverRegisters>();
    if (threadIdx.x % 128 == 0) load_slabs(args, memory);
    if (threadIdx.x % 128 == 32) store_slabs(args, memory);
    return;
  }
  take_registers<M::kRegisters>();

  const Seat64 seat;
  Turn stage;
  int whose = 0;  // the group whose turn it is
  if constexpr (M::kPrepared) barrier_wait(memory.weights_full(), 0);
  else take_weights(args, memory);
#pragma unroll 1
  for (int task = blockIdx.x; task < args.pairs * args.slabs; task += gridDim.x) {
    const int here = stage.index, parity = stage.parity;
    stage.advance(M::kStages);
    const bool mine = whose == seat.group;
    whose = whose + 1 == M::kGroups ? 0 : whose + 1;
    if (!mine) continue;
    barrier_wait(memory.full(here), parity);
    const std::uint32_t slab = memory.slab(here);
    SlabSum<kBlocks> sum;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      std::uint32_t a[kAtOnce][4];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        load_fragment<true>(a[s], seat.column_at(slab, part * kAtOnce + s));
      }
      wgmma_fence();
      if (part == 0) sum.template add<kTransposed, false>(a[0], memory.base, 0);
      else sum.template add<kTransposed, true>(a[0], memory.base, kAtOnce);
#pragma unroll
      for (int s = 1; s < kAtOnce; ++s) {
        sum.template add<kTransposed, true>(a[s], memory.base, part * kAtOnce + s);
      }
      wgmma_commit();
      wgmma_wait<0>();
    }
    // A warp's 16 entries of every block are its own.
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const float *x = sum.of(2 * s), *y = sum.of(2 * s + 1);
      store_fragment<true>(seat.column_at(slab, s), ptx::pack_bf16(x[0], x[1]),
                           ptx::pack_bf16(x[2], x[3]), ptx::pack_bf16(y[0], y[1]),
                           ptx::pack_bf16(y[2], y[3]));
    }
    arrive_written(memory.ready(here));
  }
}

}  // namespace mhla::cuda::sm90
