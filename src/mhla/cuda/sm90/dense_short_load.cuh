// The loading warpgroup of the short forward: one thread starts the copies, three warps apply the
// feature map to the keys where they lie.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/bulk_copy.cuh"
#include "mhla/cuda/sm90/dense_load.cuh"
#include "mhla/cuda/sm90/dense_short.h"
#include "mhla/cuda/sm90/feature_pair.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kMapWarps = 3;

// A buffer of a ring.
struct ShortBuffer {
  std::uint32_t at;
  std::uint32_t landed, full, empty;  // barriers; only keys have both of the first two
  int parity;                         // of the phase that fills it

  __device__ __forceinline__ void wait_full() const { barrier_wait(full, parity); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty, parity ^ 1); }
};

// Shared memory as 32-bit addresses. A ring is walked by counting its buffers: number n lies in
// slot n % slots and completes phase n / slots of its barriers.
template <int D, bool kPairs, bool kShared = false>
struct ShortShared {
  static constexpr ShortPlan kPlan = short_plan(D, kPairs, kShared);
  static constexpr int kMain = main_columns(D), kRest = rest_columns(D);
  static constexpr int kHalfBytes = kHalf * D * 2, kRowBytes = kTile * D * 2;
  using Buffer = ShortBuffer;
  std::uint32_t base;

  __device__ __forceinline__ Buffer k(int number) const {
    return buffer(number, kPlan.k_slots, base, kHalfBytes, 0, 8, 16);
  }
  __device__ __forceinline__ Buffer v(int number) const {
    return buffer(number, kPlan.v_slots, base + kPlan.v, kHalfBytes, 24, 24, 32);
  }
  __device__ __forceinline__ Buffer q(int number) const {
    return buffer(number, kPlan.q_slots, base + kPlan.q, kRowBytes, 40, 40, 52);
  }
  // Row factors of shared_position; number: of the head.
  __device__ __forceinline__ Buffer factors(int number) const {
    return buffer(number, 2, base + kPlan.rows.factors, kShortSharedQueries * 4, 64, 64, 66);
  }
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + kPlan.barriers + 8 * i;
  }

  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
    const auto init = [&](int first, int slots, int arrivals) {
#pragma unroll
      for (int i = 0; i < slots; ++i) barrier_init(barrier(first + i), arrivals);
    };
    // Arrivals of a warpgroup, and of the warps that map.
    constexpr int kGroup = 4 * kWarpArrivals, kMapped = kMapWarps * kWarpArrivals;
    init(0, kPlan.k_slots, 1);
    init(8, kPlan.k_slots, kMapped);
    init(16, kPlan.k_slots, 2 * kGroup);
    init(24, kPlan.v_slots, 1);
    init(32, kPlan.v_slots, 2 * kGroup);
    init(40, kPlan.q_slots, 1);
    init(52, kPlan.q_slots, kGroup + (kShared ? kMapped : 0));
    if constexpr (kShared) {
      init(64, 2, kMapped);
      init(66, 2, 2 * kGroup);
    }
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ Buffer buffer(int number, int slots, std::uint32_t first, int bytes,
                                           int landed, int full, int empty) const {
    const int round = number / slots, slot = number - round * slots;
    return {first + slot * bytes, barrier(landed + slot), barrier(full + slot),
            barrier(empty + slot), round & 1};
  }
};

// The heads that a thread block takes, and how far into its rings it is.
struct ShortWork {
  const ShortArgs& args;
  int item, batch, head, split;
  int half = 0, tile = 0;  // numbers of the item's first key half and row tile

  __device__ __forceinline__ explicit ShortWork(const ShortArgs& args)
      : args(args), item(static_cast<int>(blockIdx.x)) {
    const int pair = item / args.splits;
    split = item - pair * args.splits;
    batch = pair / args.dense.heads;
    head = pair - batch * args.dense.heads;
  }
  __device__ __forceinline__ bool done() const { return item >= args.items; }
  __device__ __forceinline__ int row() const { return split * args.split_rows; }
  __device__ __forceinline__ int tiles() const {
    return (min(args.split_rows, args.queries - row()) + kTile - 1) / kTile;
  }
  __device__ __forceinline__ void next() {
    half += 2;
    tile += tiles();
    item += args.grid;
    split += args.split_step;
    head += args.head_step;
    batch += args.batch_step;
    if (split >= args.splits) split -= args.splits, ++head;
    if (head >= args.dense.heads) head -= args.dense.heads, ++batch;
  }
};

template <int D, typename Shared>
class ShortCopies {
 public:
  __device__ ShortCopies(const ShortArgs& args, const Shared& shared)
      : args_(args), shared_(shared), work_(args) {}

  // In the order in which the products need them.
  __device__ void run() {
    for (; !work_.done(); work_.next()) {
      rows(0);
      keys(0);
      if (work_.tiles() > 1) rows(1);
      keys(1);
      values(0);
      values(1);
      for (int tile = 2; tile < work_.tiles(); ++tile) rows(tile);
    }
  }

 private:
  using Buffer = typename Shared::Buffer;

  __device__ void rows(int tile) const {
    const Buffer buffer = shared_.q(work_.tile + tile);
    copy<kTile>(buffer, buffer.full, 0, work_.row() + tile * kTile);
  }
  __device__ void keys(int half) const {
    const Buffer buffer = shared_.k(work_.half + half);
    copy<kHalf>(buffer, buffer.landed, 1, half * kHalf);
  }
  __device__ void values(int half) const {
    const Buffer buffer = shared_.v(work_.half + half);
    copy<kHalf>(buffer, buffer.full, 2, half * kHalf);
  }
  template <int kTokens>
  __device__ void copy(const Buffer& buffer, std::uint32_t barrier, int tensor, int token) const {
    BoxStart start{0, token, work_.head, work_.batch};
    buffer.wait_empty();
    arrive_and_expect(barrier, kTokens * D * 2);
    copy_box(buffer.at, args_.maps[tensor][0], start, barrier);
    if constexpr (Shared::kRest > 0) {
      start.column = Shared::kMain;
      copy_box(buffer.at + kTokens * Shared::kMain * 2, args_.maps[tensor][1], start, barrier);
    }
  }

  const ShortArgs& args_;
  const Shared& shared_;
  ShortWork work_;
};

// phi in place on half of the keys of a head once it has landed, by three of the four loading
// warps; the order of the bytes does not matter. kBatch: loads in flight, of four registers each.
// NOTE: columns past dk become phi(0), and meet zeros of q.
template <int D, int kBatch = 4, typename Map>
__device__ __forceinline__ void map_half(const ShortBuffer& buffer, int thread, const Map& map) {
  constexpr int kThreads = 32 * kMapWarps, kChunks = kHalf * D / 8;
  barrier_wait(buffer.landed, buffer.parity);
  for (int first = thread; first < kChunks; first += kBatch * kThreads) {
    std::uint32_t w[kBatch][4];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kThreads >= kChunks) break;
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(w[i][0]), "=r"(w[i][1]), "=r"(w[i][2]), "=r"(w[i][3])
                   : "r"(buffer.at + (first + i * kThreads) * 16)
                   : "memory");
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kThreads >= kChunks) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) w[i][j] = map(w[i][j]);
      store_chunk(buffer.at + (first + i * kThreads) * 16, w[i]);
    }
  }
  fence_async();
  __syncwarp();
  warp_arrive(buffer.full);
}

template <typename T, int D, bool kPairs>
struct ShortKeys {
  const ShortArgs& args;
  const ShortShared<D, kPairs>& shared;

  template <typename Map>
  __device__ __forceinline__ void run(const Map& map) const {
    const int thread = static_cast<int>(threadIdx.x) - (kShortThreads - 32 * kMapWarps);
    for (ShortWork work(args); !work.done(); work.next()) {
      for (int half = 0; half < 2; ++half) map_half<D>(shared.k(work.half + half), thread, map);
    }
  }
};

}  // namespace mhla::cuda::sm90
