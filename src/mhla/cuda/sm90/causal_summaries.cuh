// Summaries of blocks of 64 tokens for the causal backward: S = phi(k)^T v and
// dS~ = scale phi(q)^T d_o. Two warpgroups take 64 rows of a summary each.
#pragma once

#include "mhla/cuda/sm90/causal_backward.h"
#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

struct SummaryShared {
  using P = CausalSummaryPlan;
  std::uint32_t base;

  __device__ __forceinline__ std::uint32_t landed(int i) const { return barrier(i); }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return barrier(P::kStages + i); }
  __device__ __forceinline__ std::uint32_t x(int stage) const { return base + stage * P::kStage; }
  __device__ __forceinline__ std::uint32_t y(int stage) const {
    return x(stage) + kTile * kGradientWidth * 2;
  }
  __device__ __forceinline__ std::uint32_t out(int warpgroup) const {
    return base + P::kOut + warpgroup * P::kOutHalf;
  }
  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
#pragma unroll
    for (int i = 0; i < P::kStages; ++i) {
      barrier_init(landed(i), 1);
      barrier_init(empty(i), 8 * kWarpArrivals);
    }
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + P::kBarriers + 8 * i;
  }
};

// Blocks in turn: S of one, dS~ of the next. Nothing reads S of the last block or dS~ of the first.
struct SummaryWork {
  const CausalSummaryArgs& args;
  int item, step, kind, pair, summary, block, head, batch;
  CausalRing<CausalSummaryPlan::kStages> ring;

  __device__ __forceinline__ SummaryWork(const CausalSummaryArgs& a, CausalShare share)
      : args(a), item(share.first), step(share.step) {
    place();
  }
  __device__ __forceinline__ bool done() const { return item >= args.items; }
  __device__ __forceinline__ void next() {
    item += step;
    ring.next();
    place();
  }

 private:
  __device__ __forceinline__ void place() {
    kind = item % 2;
    pair = item / 2 / (args.blocks - 1);
    block = item / 2 - pair * (args.blocks - 1) + kind;
    summary = pair % args.slots * args.blocks + block;
    batch = pair / args.heads;
    head = pair - batch * args.heads;
  }
};

__device__ __forceinline__ void copy_summaries(const CausalSummaryArgs& args,
                                               const SummaryShared& shared, CausalShare share) {
  for (SummaryWork work(args, share); !work.done(); work.next()) {
    const int stage = work.ring.stage;
    const std::uint32_t landed = shared.landed(stage);
    barrier_wait(shared.empty(stage), work.ring.parity ^ 1);
    arrive_and_expect(landed, CausalSummaryPlan::kStage);
    BoxStart start{0, work.block * kTile, work.head, work.batch};
#pragma unroll
    for (int i = 0; i < kGradientWidth / 64; ++i, start.column += 64) {
      copy_box_once(shared.x(stage) + i * kBoxBytes, args.x[work.kind], start, landed);
    }
    start.column = 0;
#pragma unroll
    for (int i = 0; i < kSummaryWidth / 64; ++i, start.column += 64) {
      copy_box_once(shared.y(stage) + i * kBoxBytes, args.y[work.kind], start, landed);
    }
  }
}

// `order` says when the slot of a pair is free, and is told of every summary that is there.
template <typename Order>
__device__ __forceinline__ void compute_summaries(const CausalSummaryArgs& args,
                                                  const SummaryShared& shared, CausalShare share,
                                                  const Order& order) {
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane % 16;  // of the half
  const std::uint32_t out = shared.out(warpgroup);
  const bool leads = threadIdx.x % 128 == 0;
  const auto sync = [&] { ptx::sync_warps(1 + warpgroup, 128); };
  const PairMap<bf16> map(args.feature);
  int before = -1;
  for (SummaryWork work(args, share); !work.done(); work.next()) {
    const int stage = work.ring.stage;
    barrier_wait(shared.landed(stage), work.ring.parity);
    std::uint32_t a[kTile / 16][4];
    load_columns(a, shared.x(stage) + warpgroup * kBoxBytes);
    if (args.feature == Feature::elu1) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        a[i / 4][i % 4] = feature_pair<bf16, Feature::elu1>(a[i / 4][i % 4]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = map(a[i / 4][i % 4]);
    }
    // NOTE: half of the columns at a time; 256 would leave too few registers to the chain.
    float d[2][kGradientWidth / 2];
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t y = shared.y(stage) + half * (kGradientWidth / 64) * kBoxBytes;
      wgmma<bf16, kGradientWidth, true, false>(d[half], a[0], tokens_of_boxes(y, 0));
#pragma unroll
      for (int i = 1; i < kTile / 16; ++i) {
        wgmma<bf16, kGradientWidth, true, true>(d[half], a[i], tokens_of_boxes(y, i));
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    release_buffer(shared.empty(stage));
    if (work.kind == 1) {
#pragma unroll
      for (int i = 0; i < kGradientWidth; ++i) d[i / 64][i % 64] *= args.scale;
    }
    if (leads) {
      store_wait_read();
      order.await(work.pair);
    }
    sync();
#pragma unroll
    for (int g = 0; g < kSummaryWidth / 8; g += 2) {
      store_groups(out + g / 8 * kBoxBytes + Box::chunk(row, g % 8 + lane / 16),
                   d[g / 16] + g % 16 * 4);
    }
    fence_async();
    sync();
    if (leads) {
#pragma unroll
      for (int c = 0; c < kSummaryWidth / 64; ++c) {
        store_box(
            args.out[work.kind],
            {c % 2 * 64, (work.summary * 2 + c / 2) * kGradientWidth + warpgroup * kTile, 0, 0},
            out + c * kBoxBytes);
      }
      store_commit();
      if (before >= 0) {  // which has had the time of this one to get there
        store_wait<1>();
        order.done(before);
      }
    }
    before = work.pair;
  }
  if (leads && before >= 0) {
    store_wait();
    order.done(before);
  }
}

}  // namespace mhla::cuda::sm90
