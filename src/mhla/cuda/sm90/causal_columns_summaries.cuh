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
        warp(static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0))),
        rows(s.slot(0) + warp * ColumnsPlan::kWarpRows, static_cast<int>(threadIdx.x % 32)),
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
  __device__ __forceinline__ void publish(int slot, const ColumnSums& sums) {
    await_slot(slot);
    store_operand(rows, slot, sums);
    publish(slot);
  }
  __device__ __forceinline__ void publish(int slot) {
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
  // To its slot
  __device__ __forceinline__ void put() {
    const int slot = pending_block % kColumnsGroup;
    await_slot(slot);
    pending.store(rows, slot);
    pending_block = -1;
  }
  // To its slot, and to memory where a group after the next will want it. The last two of a group
  // are kept by the lanes that mix them.
  __device__ __forceinline__ void flush() {
    if (pending_block < 0) return;
    const int block = pending_block;
    put();
    if (block < args.keeps * kColumnsGroup) {
      fence_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        store_linear(kept + static_cast<std::int64_t>(block) * ColumnsPlan::kSlot,
                     rows.base + block % kColumnsGroup * ColumnsPlan::kSlot,
                     ColumnsPlan::kWarpRows);
        store_commit();
      }
    }
    __syncwarp();
  }
  // Makes the last summary of a group. S~' of the blocks of the next one takes the place of all.
  __device__ __forceinline__ void mix_groups(int block, const ColumnWeights& weights) {
    const int group = block / kColumnsGroup + 1;
    // Weights are asked for before tiles are awaited.
    FarColumns far{rows.base, kept, group, group <= args.keeps, weights};
    const float2 near_weights = NearWeights::ask(weights, block + 1);
    begin_summary();
    if (threadIdx.x % 32 == 0) {
      // What the engine kept of earlier groups has to be there: all but the six of the last one.
      if (group > args.keeps) {
        store_wait();
      } else if (group > 1) {
        store_wait<kColumnsGroup - 2>();
      }
      fence_engine();
    }
    __syncwarp();
    far.mix([&] {
      near.put(near_weights);
      put();
      end_summary();
      pending.round(d);
      pending_block = block;
      put();
      pending = {};                                  // NOTE: or it has its registers all the time
      if (threadIdx.x % 32 == 0) store_wait_read();  // of the slots, which will be written
      __syncwarp();
    });
    // NOTE: the first slot's chunks are swizzled as an operand's are, so that what the first block
    // of a group sees of earlier ones, which is all of its S~, lies there already.
    publish(0);
  }
  static __device__ __forceinline__ void clear(ColumnSums& sums) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 2; ++i) sums[i] = 0.f;
  }
  // The sums of the blocks `first` and on: what they see of earlier groups.
  __device__ __forceinline__ void begin_row(int i, int first, bool far) {
    if (far) {
      load_mixed(rows, first + i, row[i]);
    } else {
      clear(row[i]);
    }
  }
  // The summaries in an even slot and the one after it, for blocks `first` and `first + 1`.
  __device__ __forceinline__ void add_rows(int slot, int first) {
    const float2 one = near.two(first, slot), other = near.two(first, slot + 1);
    const std::uint32_t factors[] = {diagonal.factor(one.x), diagonal.factor(one.y),
                                     diagonal.factor(other.x), diagonal.factor(other.y)};
    add_mixed(rows, slot, factors, row);
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
  // An even block, and an odd one; they say whether another follows. A summary is added to the sums
  // of the blocks up to the next two from the registers it was made in.
  __device__ __forceinline__ bool even(int block) {
    const int slot = block % kColumnsGroup, next = slot + 2, group = block / kColumnsGroup;
    const bool more = block + 1 < args.blocks;
    if (more) begin_summary();
    if (slot > 0) publish(slot, row[0]);
    if (!more) {
      skip_tiles();
      return false;
    }
    // NOTE: whether they are wanted or not, or the compiler keeps the sums before.
    const bool far = group > 0 && next < kColumnsGroup;
    begin_row(0, next, far);
    const float weight = near(slot + 1, slot);
    end_summary();
    add_summary(row[1], weight);
    publish(slot + 1, row[1]);
    flush();
    keep(block);
    begin_row(1, next, far);
    if (next < kColumnsGroup) {
      const float2 weights = near.two(next, slot);
      add_summary(row[0], weights.x);
      add_summary(row[1], weights.y);
    }
    return true;
  }
  __device__ __forceinline__ bool odd(int block, const ColumnWeights& weights) {
    const int slot = block % kColumnsGroup, next = slot + 1;
    if (block + 1 == args.blocks) {
      skip_tiles();
      return false;
    }
    if (next < kColumnsGroup) {
      begin_summary();
      static_assert(kColumnsGroup == 8);  // so that there are at most two pairs
      if (slot > 1) add_rows(0, next);
      end_summary();  // tiles are given back soon
      if (slot > 3) add_rows(2, next);
      const float2 weight = near.two(next, slot);
      add_summary(row[0], weight.x);
      add_summary(row[1], weight.y);
      flush();
      keep(block);
    } else {
      mix_groups(block, weights);
      begin_row(0, 0, false);
      begin_row(1, 0, true);
    }
    return true;
  }
  __device__ __forceinline__ void walk(const ColumnsItem& item) {
    const ColumnWeights weights(args, item.head);
    fence_engine();  // what was kept of the item before has been read
    near.put(NearWeights::ask(weights, 0));
    begin_row(0, 0, false);
    begin_row(1, 0, false);
    for (int block = 0; even(block) && odd(block + 1, weights); block += 2) {
    }
  }
  __device__ __forceinline__ void run() {
    each_item(args, [&](const ColumnsItem& item, bool) { walk(item); });
    if (threadIdx.x % 32 == 0) store_wait_read();
  }
};

}  // namespace mhla::cuda::sm90
