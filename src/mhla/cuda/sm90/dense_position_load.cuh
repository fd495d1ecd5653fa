// The loading warpgroup of the forward by positions: one thread starts the copies, three warps
// apply the feature map to the keys where they lie and bring the taps of the local term.
#pragma once

#include "mhla/cuda/sm90/dense_position.h"
#include "mhla/cuda/sm90/dense_short_load.cuh"

namespace mhla::cuda::sm90 {

// Shared memory as 32-bit addresses; rings as in ShortShared.
template <PositionTeam kTeam>
struct PositionShared {
  static constexpr PositionPlan kPlan = position_plan(kTeam);
  static constexpr int kHalfBytes = kHalf * 64 * 2, kTileBytes = kTile * 64 * 2;
  static constexpr int kMapBatch = kTeam.quarters() ? 2 : 4;  // as registers allow
  using Buffer = ShortBuffer;
  std::uint32_t base;

  __device__ __forceinline__ Buffer k(int number) const {
    return buffer(number, 4, base, kHalfBytes, 0, 4, 8);
  }
  __device__ __forceinline__ Buffer v(int number) const {
    return buffer(number, 4, base + kPlan.v, kHalfBytes, 12, 12, 16);
  }
  __device__ __forceinline__ Buffer q(int number) const {
    return buffer(number, kPositionQueueTiles, base + kPlan.q, kTileBytes, 20, 20,
                  20 + kPositionQueueTiles);
  }
  // Taps of the local term; number: of the head.
  __device__ __forceinline__ Buffer taps(int number) const {
    return buffer(number, 2, base + kPlan.taps, 8 * kTapStride, kMoreBarriers, kMoreBarriers,
                  kMoreBarriers + 2);
  }
  // Tiles of outputs, full when the local term is there.
  __device__ __forceinline__ Buffer o(int number) const {
    return buffer(number, kPositionOutputTiles, base + kPlan.o, kTileBytes, kMoreBarriers,
                  kMoreBarriers, kMoreBarriers + kPositionOutputTiles);
  }

  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
    const auto init = [&](int first, int slots, int arrivals) {
#pragma unroll
      for (int i = 0; i < slots; ++i) barrier_init(barrier(first + i), arrivals);
    };
    constexpr int kGroup = 4 * kWarpArrivals;  // arrivals of a warpgroup
    init(0, 4, 1);
    init(4, 4, kMapWarps * kWarpArrivals);
    init(8, 4, kTeam.computing * kGroup);
    init(12, 4, 1);
    init(16, 4, kTeam.all() * kGroup);
    init(20, kPositionQueueTiles, 1);
    init(20 + kPositionQueueTiles, kPositionQueueTiles, kGroup);
    if constexpr (kTeam.local) {
      init(kMoreBarriers, 2 * kPositionOutputTiles, kGroup);
    } else {
      init(kMoreBarriers, 2, 32 * kMapWarps);
      init(kMoreBarriers + 2, 2, kTeam.computing * kGroup);
    }
    fence_barrier_init();
  }

 private:
  static constexpr int kMoreBarriers = 20 + 2 * kPositionQueueTiles;

  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + kPlan.barriers + 8 * i;
  }
  __device__ __forceinline__ Buffer buffer(int number, int slots, std::uint32_t first, int bytes,
                                           int landed, int full, int empty) const {
    const int round = number / slots, slot = number - round * slots;
    return {first + slot * bytes, barrier(landed + slot), barrier(full + slot),
            barrier(empty + slot), round & 1};
  }
};

// Where the box of 64 tokens, or of 16, starts that has a position as its first.
struct PositionStart {
  int x, rest;

  __device__ __forceinline__ PositionStart(const PositionArgs& args, int tensor,
                                           const ShortWork& work, int position) {
    const PositionSteps& steps = args.steps[tensor];
    const int y = position / args.block_width;
    x = position - y * args.block_width;
    rest = work.head * steps.head + work.batch * steps.batch + y * steps.line;
  }
};
__device__ __forceinline__ void copy_positions(std::uint32_t to, const CUtensorMap& map,
                                               const PositionStart& start, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(0), "r"(0), "r"(start.x), "r"(start.rest)
      : "memory");
}
__device__ __forceinline__ void store_position(const CUtensorMap& map, const PositionStart& start,
                                               std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];\n" ::"l"(&map),
      "r"(from), "r"(0), "r"(0), "r"(0), "r"(start.x), "r"(start.rest)
      : "memory");
}

template <typename Shared>
class PositionCopies {
 public:
  __device__ PositionCopies(const PositionArgs& args, const Shared& shared)
      : args_(args), shared_(shared), work_(args) {}

  // In the order in which the products need them.
  __device__ void run() {
    for (; !work_.done(); work_.next()) {
      rows(0);
      half(1, shared_.k(work_.half), 0);
      rows(1);
      half(1, shared_.k(work_.half + 1), 1);
      half(2, shared_.v(work_.half), 0);
      half(2, shared_.v(work_.half + 1), 1);
      for (int tile = 2; tile < work_.tiles(); ++tile) rows(tile);
    }
  }

 private:
  __device__ void rows(int tile) const {
    const auto buffer = shared_.q(work_.tile + tile);
    buffer.wait_empty();
    arrive_and_expect(buffer.landed, Shared::kTileBytes);
    box(0, buffer.at, work_.row() + tile * kTile, buffer.landed);
  }
  __device__ void half(int tensor, const ShortBuffer& buffer, int which) const {
    buffer.wait_empty();
    arrive_and_expect(buffer.landed, Shared::kHalfBytes);
    for (int i = 0; i < kHalf / kTile; ++i) {
      box(tensor, buffer.at + i * Shared::kTileBytes, which * kHalf + i * kTile, buffer.landed);
    }
  }
  __device__ void box(int tensor, std::uint32_t to, int row, std::uint32_t barrier) const {
    copy_positions(to, args_.maps[tensor][0],
                   PositionStart(args_, tensor, work_, row / kPositionBlocks), barrier);
  }

  const PositionArgs& args_;
  const Shared& shared_;
  ShortWork work_;
};

// The taps of a head to shared memory: a word holds two taps of a channel.
__device__ __forceinline__ void copy_taps(const PositionArgs& args, int head, std::uint32_t to,
                                          int thread) {
  const int width = args.dense.dv;
  const auto* weight = static_cast<const std::uint16_t*>(args.tap_weight) + head * width * kTaps;
  const auto* bias = static_cast<const std::uint16_t*>(args.tap_bias);
#pragma unroll 1
  for (int n = thread; n < kTapPairs * 64; n += 32 * kMapWarps) {
    const int channel = n % 64, pair = n / 64;
    std::uint32_t low = 0, high = 0;
    if (channel < width) {
      const std::uint16_t* from = weight + channel * kTaps + 2 * pair;
      low = __ldg(from);
      if (pair + 1 < kTapPairs) {
        high = __ldg(from + 1);
      } else if (bias != nullptr) {
        high = __ldg(bias + head * width + channel);
      }
    }
    store_float(to + channel % 8 * kTapStride + (pair * 8 + channel / 8) * 4,
                __uint_as_float(low | high << 16));
  }
}

// thread: of the three warps; kBringTaps: whether they bring the taps.
template <bool kBringTaps, typename Shared, typename Map>
__device__ __forceinline__ void prepare_positions(const PositionArgs& args, const Shared& shared,
                                                  int thread, const Map& map) {
  int held[2] = {-1, -1};  // heads whose taps lie in the two buffers: often the same ones again
  for (ShortWork work(args); !work.done(); work.next()) {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      map_half<64, Shared::kMapBatch>(shared.k(work.half + half), thread, map);
    }
    if constexpr (kBringTaps) {
      const auto taps = shared.taps(work.half / 2);
      taps.wait_empty();
      const bool odd = work.half / 2 % 2 != 0;
      if ((odd ? held[1] : held[0]) != work.head) copy_taps(args, work.head, taps.at, thread);
      (odd ? held[1] : held[0]) = work.head;
      barrier_arrive(taps.full);  // by every lane: racecheck follows no arrival for others
    }
  }
}

}  // namespace mhla::cuda::sm90
