// Shared memory of the causal forward by columns, and how its thread blocks share the work.
#pragma once

#include "mhla/cuda/sm90/causal_columns.h"
#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

struct ColumnsShared {
  using P = ColumnsPlan;
  std::uint32_t base;

  __device__ __forceinline__ std::uint32_t slot(int i) const { return base + i * P::kSlot; }
  __device__ __forceinline__ std::uint32_t k(int stage) const {
    return base + P::kKeys + stage * P::kTileBytes;
  }
  __device__ __forceinline__ std::uint32_t q() const { return base + P::kQueries; }
  __device__ __forceinline__ std::uint32_t v(int stage) const {
    return base + P::kValues + stage * P::kValueBytes;
  }
  __device__ __forceinline__ std::uint32_t out() const { return base + P::kOut; }
  __device__ __forceinline__ std::uint32_t near(int warp) const {
    return base + P::kNear + warp * P::kWeights;
  }
  // Keys have landed, have passed the feature map, their buffer is free again.
  __device__ __forceinline__ std::uint32_t k_landed(int i) const { return barrier(i); }
  __device__ __forceinline__ std::uint32_t k_mapped(int i) const { return barrier(3 + i); }
  __device__ __forceinline__ std::uint32_t k_empty(int i) const { return barrier(6 + i); }
  __device__ __forceinline__ std::uint32_t q_landed() const { return barrier(9); }
  __device__ __forceinline__ std::uint32_t q_empty() const { return barrier(10); }
  __device__ __forceinline__ std::uint32_t v_landed(int i) const { return barrier(11 + i); }
  __device__ __forceinline__ std::uint32_t v_empty(int i) const { return barrier(14 + i); }
  // Results of a block are there; have been stored.
  __device__ __forceinline__ std::uint32_t out_full() const { return barrier(17); }
  __device__ __forceinline__ std::uint32_t out_empty() const { return barrier(18); }
  // S~ of a block lies in its slot; has been read from there.
  __device__ __forceinline__ std::uint32_t ready(int i) const { return barrier(19 + i); }
  __device__ __forceinline__ std::uint32_t read(int i) const { return barrier(27 + i); }

  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
    static_assert(P::kKeyStages == 3 && P::kValueStages == 3 &&
                  kColumnsGroup == 8);  // as the numbers above have it
#pragma unroll
    for (int i = 0; i < P::kKeyStages; ++i) {
      barrier_init(k_landed(i), 1);
      barrier_init(k_mapped(i), kColumnsMapWarps * kWarpArrivals);
      barrier_init(k_empty(i), (kSummaryWarps + kResultWarps) * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i < P::kValueStages; ++i) {
      barrier_init(v_landed(i), 1);
      barrier_init(v_empty(i), (kSummaryWarps + kResultWarps) * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i < kColumnsGroup; ++i) {
      barrier_init(ready(i), kSummaryWarps * kWarpArrivals);
      barrier_init(read(i), kResultWarps * kWarpArrivals);
    }
    barrier_init(out_full(), kResultWarps * kWarpArrivals);
    barrier_init(out_empty(), kWarpArrivals);
    barrier_init(q_landed(), 1);
    barrier_init(q_empty(), kResultWarps * kWarpArrivals);
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + P::kBarriers + 8 * i;
  }
};
using KeyRing = CausalRing<ColumnsPlan::kKeyStages>;
using ValueRing = CausalRing<ColumnsPlan::kValueStages>;

// 64 columns of a pair. Parts of a pair are neighbours: they read the same q and k.
struct ColumnsItem {
  int head, batch, column;

  __device__ __forceinline__ ColumnsItem(const ColumnsArgs& args, int number) {
    const int pair = number / args.parts;
    batch = pair / args.heads;
    head = pair - batch * args.heads;
    column = (number - pair * args.parts) * kColumnsWidth;
  }
};
// work(item, whether another follows)
template <typename Work>
__device__ __forceinline__ void each_item(const ColumnsArgs& args, Work&& work) {
  const int step = static_cast<int>(gridDim.x);
  for (int i = static_cast<int>(blockIdx.x); i < args.items; i += step) {
    work(ColumnsItem(args, i), i + step < args.items);
  }
}

}  // namespace mhla::cuda::sm90
