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
  std::uint32_t k[kTile / 16][4];  // 16 columns of the keys of the next summary
  ColumnSums d, row[2];

  __device__ __forceinline__ ColumnSummaries(const ColumnsArgs& a, const ColumnsShared& s)
      : args(a),
        shared(s),
        warp(static_cast<int>(threadIdx.x / 32)),
        rows(s.slot(0) + warp * ColumnsPlan::kWarpRows),
        kept(static_cast<unsigned char*>(a.kept) +
             static_cast<std::int64_t>(blockIdx.x) * a.keeps * kColumnsGroup * ColumnsPlan::kSlot +
             warp * ColumnsPlan::kWarpRows),
        near{s.near(warp)} {}

  template <Feature kFeature>
  __device__ __forceinline__ void map_columns() {
#pragma unroll
    for (int i = 0; i < 16; ++i) k[i / 4][i % 4] = feature_pair<bf16, kFeature>(k[i / 4][i % 4]);
  }
  // phi of 16 columns of the next keys, to registers and back to where they lay. NOTE: without a
  // map the arrival may overtake the loads; products read the same keys before they are replaced.
  __device__ __forceinline__ void map_keys() {
    const std::uint32_t box = shared.k(keys.stage) + warp / 4 * kBoxBytes;
    barrier_wait(shared.k_landed(keys.stage), keys.parity);
    load_columns(k, box);
    if (args.feature != Feature::identity) {
      if (args.feature == Feature::relu) map_columns<Feature::relu>();
      if (args.feature == Feature::relu_eps) map_columns<Feature::relu_eps>();
      if (args.feature == Feature::elu1) map_columns<Feature::elu1>();
      store_columns(box, k);
      fence_async();
    }
    release_buffer(shared.k_mapped(keys.stage));
    keys.next();
  }
  // d = phi(k)^T v, not awaited
  __device__ __forceinline__ void begin_summary() {
    barrier_wait(shared.v_landed(values.stage), values.parity);
    wgmma_fence();
    wgmma<bf16, 64, true, false>(d, k[0], Box::tokens_inner(shared.v(values.stage), 0));
#pragma unroll
    for (int i = 1; i < kTile / 16; ++i) {
      wgmma<bf16, 64, true, true>(d, k[i], Box::tokens_inner(shared.v(values.stage), i));
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void release_values() {
    release_buffer(shared.v_empty(values.stage));
    values.next();
  }
  // Awaits it, and readies the keys of the next one.
  __device__ __forceinline__ void end_summary() {
    wgmma_wait<0>();
    hold(d);
    release_values();
    map_keys();
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
  // The summary to its slot, for blocks after the next, and to memory where a group after the next
  // will want it.
  __device__ __forceinline__ void keep(int slot, int group) {
    await_slot(slot);
    store_mixed(rows, slot, d);
    if (group < args.keeps) fence_async();
    __syncwarp();
    if (group < args.keeps && threadIdx.x % 32 == 0) {
      const std::int64_t number = group * kColumnsGroup + slot;
      store_linear(kept + number * ColumnsPlan::kSlot, rows.base + slot * ColumnsPlan::kSlot,
                   ColumnsPlan::kWarpRows);
      store_commit();
    }
  }
  // S~' of the blocks of the next group takes the place of this one's summaries.
  __device__ __forceinline__ void mix_groups(const FarColumns& far) {
    if (threadIdx.x % 32 == 0) {
      store_wait_read();  // of the slots, which will be written
      // What earlier groups stored has to be there; where the last one stored, too, less its
      // stores.
      if (far.group > args.keeps) {
        store_wait_all();
      } else if (far.group > 1) {
        store_wait_but<kColumnsGroup>();
      }
      fence_engine();
    }
    __syncwarp();
    far.mix();
  }
  // The sums of two blocks before the summary of the block before them.
  __device__ __forceinline__ void begin_rows(int first, bool far) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 2; ++i) row[0][i] = row[1][i] = 0.f;
    if (far) {
      const std::uint32_t one = diagonal.factor(1.f);
      if (first > 0) add_mixed(rows, first, one, row[0]);
      add_mixed(rows, first + 1, one, row[1]);
    }
#pragma unroll 1
    for (int slot = 0; slot + 1 < first; ++slot) {
      const std::uint32_t factors[] = {diagonal.factor(near(first, slot)),
                                       diagonal.factor(near(first + 1, slot))};
      add_mixed(rows, slot, factors, row);
    }
  }
  __device__ __forceinline__ void add_summary(ColumnSums& sums, float w) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 2; ++i) sums[i] += w * d[i];
  }

  // The last block: nothing reads its summary.
  __device__ __forceinline__ void skip_values() {
    barrier_wait(shared.v_landed(values.stage), values.parity);
    release_values();
  }
  // An even block, and an odd one; they say whether another follows.
  __device__ __forceinline__ bool even(int block) {
    const int slot = block % kColumnsGroup;
    const bool more = block + 1 < args.blocks;
    if (more) begin_summary();
    if (block > 0) publish(slot, row[0]);
    if (!more) {
      skip_values();
      return false;
    }
    end_summary();
    add_summary(row[1], near(slot + 1, slot));
    publish(slot + 1, row[1]);
    if (block + 2 < args.blocks) keep(slot, block / kColumnsGroup);
    return true;
  }
  __device__ __forceinline__ bool odd(int block, const ColumnWeights& weights) {
    const int slot = block % kColumnsGroup, next = slot + 1, group = block / kColumnsGroup;
    if (block + 1 == args.blocks) {
      skip_values();
      return false;
    }
    begin_summary();
    if (next < kColumnsGroup) {
      begin_rows(next, group > 0);
      end_summary();
      add_summary(row[0], near(next, slot));
      add_summary(row[1], near(next + 1, slot));
      if (block + 2 < args.blocks) keep(slot, group);
    } else {
      const FarColumns far(rows.base, kept, group + 1, weights);
      near.load(weights, block + 1);
      end_summary();
      keep(slot, group);
      mix_groups(far);
      begin_rows(0, true);
    }
    return true;
  }
  __device__ __forceinline__ void walk(const ColumnsItem& item) {
    const ColumnWeights weights(args, item.head);
    fence_engine();  // what was kept of the item before has been read
    map_keys();
    near.load(weights, 0);
    begin_rows(0, false);
    for (int block = 0; even(block) && odd(block + 1, weights); block += 2) {
    }
  }
  __device__ __forceinline__ void run() {
    each_item(args, [&](const ColumnsItem& item) { walk(item); });
    if (threadIdx.x % 32 == 0) store_wait_read();
  }
};

}  // namespace mhla::cuda::sm90
