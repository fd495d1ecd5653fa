// The warps of the causal forward by columns that make summaries and mix them.
#pragma once

#include "mhla/cuda/sm90/causal_columns_mix.cuh"
#include "mhla/cuda/sm90/causal_columns_shared.cuh"

namespace mhla::cuda::sm90 {

// What a warp that makes and mixes summaries does. Blocks go in twos, 2n and 2n + 1: S~ of both is
// summed at once (`row`), which reads summaries half as often.
struct ColumnSummaries {
  const ColumnsArgs& args;
  const ColumnsShared& shared;
  int warp;
  ColumnRows rows;
  unsigned char* kept;  // the warp's rows of the groups in memory
  KeyRing keys;
  ValueRing values;
  unsigned published = 0;  // bit i: slot i holds S~ that may still be read
  unsigned parity = 0;     // bit i: of read(i)
  NearWeights near;
  Diagonal diagonal;
  ColumnSums d, row[2];
  // A summary goes to its slot, where S~ of its own block is read before, when it is wanted there.
  RoundedRows pending;
  int pending_block = -1;

  __device__ __forceinline__ ColumnSummaries(const ColumnsArgs& a, const ColumnsShared& s)
      : args(a),
        shared(s),
        warp(static_cast<int>(threadIdx.x / 32)),
        rows(s.slot(0) + warp * ColumnsPlan::kWarpRows),
        kept(static_cast<unsigned char*>(a.kept) +
             static_cast<std::int64_t>(blockIdx.x) * a.keeps * kColumnsGroup * ColumnsPlan::kSlot +
             warp * ColumnsPlan::kWarpRows),
        near{s.near(warp)} {}

  // d = phi(k)^T v, not awaited
  __device__ __forceinline__ void begin_summary() {
    await_tiles();
    const std::uint32_t k = shared.k(keys.stage) + warp / 4 * kBoxBytes, v = shared.v(values.stage);
    wgmma_fence();
    wgmma_columns<false>(d, Box::tokens_inner(k, 0), Box::tokens_inner(v, 0));
#pragma unroll
    for (int i = 1; i < kTile / 16; ++i) {
      wgmma_columns<true>(d, Box::tokens_inner(k, i), Box::tokens_inner(v, i));
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void end_summary() {
    wgmma_wait<0>();
    hold(d);
    release_tiles();
  }
  __device__ __forceinline__ void await_tiles() {
    barrier_wait(shared.k_landed(keys.stage), keys.parity);
    barrier_wait(shared.v_landed(values.stage), values.parity);
    barrier_wait(shared.k_mapped(keys.stage), keys.parity);
  }
  __device__ __forceinline__ void release_tiles() {
    __syncwarp();
    warp_arrive(shared.k_empty(keys.stage));
    warp_arrive(shared.v_empty(values.stage));
    keys.next();
    values.next();
  }

  // Until S~ that lies in a slot has been read.
  __device__ __forceinline__ void await_slot(int slot) {
    if ((published >> slot & 1) == 0) return;
    barrier_wait(shared.read(slot), parity >> slot & 1);
    published ^= 1u << slot;
    parity ^= 1u << slot;
  }
  // NOTE: the first slot's chunks are swizzled as an operand's are, so that what the first block of
  // a group sees of earlier ones, which is all of its S~, lies there already.
  __device__ __forceinline__ void publish(int slot, const ColumnSums& sums) {
    await_slot(slot);
    if (slot > 0) store_operand(rows, slot, sums);
    fence_async();
    release_buffer(shared.ready(slot));
    published ^= 1u << slot;
  }
  // The summary, where a block after the next will want it.
  __device__ __forceinline__ void keep(int block) {
    if (block + 2 >= args.blocks) return;
    pending.round(d);
    pending_block = block;
  }
  // To its slot, and to memory where a group after the next will want it.
  __device__ __forceinline__ void flush() {
    if (pending_block < 0) return;
    const int slot = pending_block % kColumnsGroup;
    await_slot(slot);
    pending.store(rows, slot);
    if (pending_block < args.keeps * kColumnsGroup) {
      fence_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        store_linear(kept + static_cast<std::int64_t>(pending_block) * ColumnsPlan::kSlot,
                     rows.base + slot * ColumnsPlan::kSlot, ColumnsPlan::kWarpRows);
        store_commit();
      }
    }
    pending_block = -1;
    __syncwarp();
  }
  // S~' of the blocks of the next group takes the place of this one's summaries, the last of which
  // is still being made.
  __device__ __forceinline__ void mix_groups(int block, const ColumnWeights& weights) {
    const int group = block / kColumnsGroup + 1;
    FarColumns far{rows.base, kept, group, weights};
    if (threadIdx.x % 32 == 0) {
      // What earlier groups stored has to be there; where the last one stores, too, it has stored
      // all but two.
      if (group > args.keeps) {
        store_wait();
      } else if (group > 1) {
        store_wait<kColumnsGroup - 2>();
      }
      fence_engine();
    }
    __syncwarp();
    far.mix([&] {
      near.load(weights, block + 1);
      flush();
      end_summary();
      pending.round(d);
      pending_block = block;
      flush();
      pending = {};                                  // NOTE: or it has its registers all the time
      if (threadIdx.x % 32 == 0) store_wait_read();  // of the slots, which will be written
      __syncwarp();
    });
  }
  static __device__ __forceinline__ void clear(ColumnSums& sums) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 2; ++i) sums[i] = 0.f;
  }
  // The sums of two blocks before the summary of the block before them.
  __device__ __forceinline__ void begin_rows(int first, bool far) {
    // NOTE: all of them in any case, or the compiler keeps the sums before.
    if (far && first > 0) {
      load_mixed(rows, first, row[0]);
    } else {
      clear(row[0]);
    }
    if (far) {
      load_mixed(rows, first + 1, row[1]);
    } else {
      clear(row[1]);
    }
#pragma unroll 1
    for (int slot = 0; slot + 1 < first; ++slot) {
      const float2 weights = near.two(first, slot);
      const std::uint32_t factors[] = {diagonal.factor(weights.x), diagonal.factor(weights.y)};
      if (slot + 2 == first) flush();  // as late as it can be
      add_mixed(rows, slot, factors, row);
    }
  }
  __device__ __forceinline__ void add_summary(ColumnSums& sums, float w) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 2; ++i) sums[i] += w * d[i];
  }

  // The last block: nothing reads its summary.
  __device__ __forceinline__ void skip_tiles() {
    await_tiles();
    release_tiles();
  }
  // An even block, and an odd one; they say whether another follows.
  __device__ __forceinline__ bool even(int block) {
    const int slot = block % kColumnsGroup;
    const bool more = block + 1 < args.blocks;
    if (more) begin_summary();
    if (block > 0) publish(slot, row[0]);
    if (!more) {
      skip_tiles();
      return false;
    }
    flush();
    const float weight = near(slot + 1, slot);
    end_summary();
    add_summary(row[1], weight);
    publish(slot + 1, row[1]);
    keep(block);
    return true;
  }
  __device__ __forceinline__ bool odd(int block, const ColumnWeights& weights) {
    const int slot = block % kColumnsGroup, next = slot + 1, group = block / kColumnsGroup;
    if (block + 1 == args.blocks) {
      skip_tiles();
      return false;
    }
    begin_summary();
    if (next < kColumnsGroup) {
      begin_rows(next, group > 0);
      const float2 weight = near.two(next, slot);
      end_summary();
      add_summary(row[0], weight.x);
      add_summary(row[1], weight.y);
      keep(block);
    } else {
      mix_groups(block, weights);
      begin_rows(0, true);
    }
    return true;
  }
  __device__ __forceinline__ void walk(const ColumnsItem& item) {
    const ColumnWeights weights(args, item.head);
    fence_engine();  // what was kept of the item before has been read
    near.load(weights, 0);
    begin_rows(0, false);
    for (int block = 0; even(block) && odd(block + 1, weights); block += 2) {
    }
  }
  __device__ __forceinline__ void run() {
    each_item(args, [&](const ColumnsItem& item, bool) { walk(item); });
    if (threadIdx.x % 32 == 0) store_wait_read();
  }
};

}  // namespace mhla::cuda::sm90
