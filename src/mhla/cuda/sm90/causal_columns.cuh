// Causal forward without a normaliser, 64 columns of dv at a time, summaries on the chip:
//   o_i = phi(q_i) S~_i + m_ii tril(phi(q_i) phi(k_i)^T) v_i,  S~_i = sum over j < i of m_ij S_j.
//
// Two warpgroups make S_i = phi(k_i)^T v_i, 64 rows of dk each, and mix; a third makes the results
// of a block; one thread loads.
#pragma once

#include "mhla/cuda/sm90/causal_columns_mix.cuh"
#include "mhla/cuda/sm90/causal_forward.cuh"

namespace mhla::cuda::sm90 {

struct ColumnsShared {
  using P = ColumnsPlan;
  std::uint32_t base;

  __device__ __forceinline__ std::uint32_t slot(int i) const { return base + i * P::kSlot; }
  __device__ __forceinline__ std::uint32_t k(int stage) const {
    return base + P::kKeys + stage * P::kTileBytes;
  }
  __device__ __forceinline__ std::uint32_t q(int stage) const {
    return base + P::kQueries + stage * P::kTileBytes;
  }
  __device__ __forceinline__ std::uint32_t v(int stage) const {
    return base + P::kValues + stage * P::kValueBytes;
  }
  // Keys have landed, have passed the feature map, their buffer is free again.
  __device__ __forceinline__ std::uint32_t k_landed(int i) const { return barrier(i); }
  __device__ __forceinline__ std::uint32_t k_mapped(int i) const { return barrier(3 + i); }
  __device__ __forceinline__ std::uint32_t k_empty(int i) const { return barrier(6 + i); }
  __device__ __forceinline__ std::uint32_t q_landed(int i) const { return barrier(9 + i); }
  __device__ __forceinline__ std::uint32_t q_empty(int i) const { return barrier(11 + i); }
  __device__ __forceinline__ std::uint32_t v_landed(int i) const { return barrier(13 + i); }
  __device__ __forceinline__ std::uint32_t v_empty(int i) const { return barrier(15 + i); }
  // S~ of a block lies in its slot; has been read from there.
  __device__ __forceinline__ std::uint32_t ready(int i) const { return barrier(17 + i); }
  __device__ __forceinline__ std::uint32_t read(int i) const { return barrier(25 + i); }

  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
    static_assert(P::kKeyStages == 3 && P::kQueryStages == 2 && P::kValueStages == 2);
#pragma unroll
    for (int i = 0; i < P::kKeyStages; ++i) {
      barrier_init(k_landed(i), 1);
      barrier_init(k_mapped(i), kSummaryWarps * kWarpArrivals);
      barrier_init(k_empty(i), kResultWarps * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i < P::kQueryStages; ++i) {
      barrier_init(q_landed(i), 1);
      barrier_init(q_empty(i), kResultWarps * kWarpArrivals);
      barrier_init(v_landed(i), 1);
      barrier_init(v_empty(i), (kSummaryWarps + kResultWarps) * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i < kColumnsGroup; ++i) {
      barrier_init(ready(i), kSummaryWarps * kWarpArrivals);
      barrier_init(read(i), kResultWarps * kWarpArrivals);
    }
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + P::kBarriers + 8 * i;
  }
};
using KeyRing = CausalRing<ColumnsPlan::kKeyStages>;
using QueryRing = CausalRing<ColumnsPlan::kQueryStages>;
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
template <typename Work>
__device__ __forceinline__ void each_item(const ColumnsArgs& args, Work&& work) {
  for (int i = static_cast<int>(blockIdx.x); i < args.items; i += static_cast<int>(gridDim.x)) {
    work(ColumnsItem(args, i));
  }
}

__device__ __forceinline__ void copy_columns(const ColumnsArgs& args, const ColumnsShared& shared) {
  KeyRing k;
  QueryRing q;
  ValueRing v;
  each_item(args, [&](const ColumnsItem& item) {
    const auto copy_tile = [&](std::uint32_t to, const CUtensorMap& map, int block,
                               std::uint32_t landed) {
      arrive_and_expect(landed, ColumnsPlan::kTileBytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_box(to + i * kBoxBytes, map, {i * 64, block * kTile, item.head, item.batch}, landed);
      }
    };
    const auto copy_keys = [&](int block) {
      barrier_wait(shared.k_empty(k.stage), k.parity ^ 1);
      copy_tile(shared.k(k.stage), args.k, block, shared.k_landed(k.stage));
      k.next();
    };
    copy_keys(0);
    for (int block = 0; block < args.blocks; ++block, q.next(), v.next()) {
      if (block + 1 < args.blocks) copy_keys(block + 1);
      const std::uint32_t landed = shared.v_landed(v.stage);
      barrier_wait(shared.v_empty(v.stage), v.parity ^ 1);
      arrive_and_expect(landed, ColumnsPlan::kValueBytes);
      copy_box(shared.v(v.stage), args.v, {item.column, block * kTile, item.head, item.batch},
               landed);
      barrier_wait(shared.q_empty(q.stage), q.parity ^ 1);
      copy_tile(shared.q(q.stage), args.q, block, shared.q_landed(q.stage));
    }
  });
}

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
  unsigned published = 0, parity = 0;  // bit i: slot i holds S~ that may still be read; of read(i)
  NearWeights near;
  std::uint32_t k[kTile / 16][4];  // 16 columns of the keys of the next summary
  ColumnSums d, row[2];

  __device__ __forceinline__ ColumnSummaries(const ColumnsArgs& a, const ColumnsShared& s)
      : args(a),
        shared(s),
        warp(static_cast<int>(threadIdx.x / 32)),
        rows(s.slot(0) + warp * ColumnsPlan::kWarpRows),
        kept(static_cast<unsigned char*>(a.kept) +
             static_cast<std::int64_t>(blockIdx.x) * a.keeps * kColumnsGroup * ColumnsPlan::kSlot +
             warp * ColumnsPlan::kWarpRows) {}

  template <Feature kFeature>
  __device__ __forceinline__ void map_columns() {
#pragma unroll
    for (int i = 0; i < 16; ++i) k[i / 4][i % 4] = feature_pair<bf16, kFeature>(k[i / 4][i % 4]);
  }
  // phi of 16 columns of the next keys, to registers and back to where they lay.
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
  __device__ __forceinline__ void publish(int slot, const ColumnSums& sums) {
    await_slot(slot);
    store_operand(rows, slot, sums);
    fence_async();
    release_buffer(shared.ready(slot));
    published ^= 1u << slot;
  }
  // The summary to its slot, and to memory where a group after the next will want it.
  __device__ __forceinline__ void keep(int slot, int group) {
    await_slot(slot);
    store_mixed(rows, slot, d);
    if (group >= args.keeps) return;
    fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      const std::int64_t number = group * kColumnsGroup + slot;
      store_linear(kept + number * ColumnsPlan::kSlot, rows.base + slot * ColumnsPlan::kSlot,
                   ColumnsPlan::kWarpRows);
      store_commit();
    }
  }
  // S~' of the blocks of a group: what they see of earlier groups.
  __device__ __forceinline__ void mix_groups(const ColumnWeights& weights, int group) {
    if (threadIdx.x % 32 == 0) {
      store_wait_read();                               // the slots will be written
      if (group > 1) store_wait_but<kColumnsGroup>();  // what earlier groups stored is there
      fence_engine();
    }
    __syncwarp();
    FarColumns{rows.base, kept}.mix(weights, group);
  }
  // The sums of two blocks before the summary of the block before them.
  __device__ __forceinline__ void begin_rows(int first, bool far) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 2; ++i) row[0][i] = row[1][i] = 0.f;
    if (far) {
      const DiagonalFactor one(1.f);
      add_mixed(rows, first, one, row[0]);
      add_mixed(rows, first + 1, one, row[1]);
    }
#pragma unroll 1
    for (int slot = 0; slot + 1 < first; ++slot) {
      add_mixed(rows, slot, DiagonalFactor(near(first, slot)), row[0],
                DiagonalFactor(near(first + 1, slot)), row[1]);
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
    keep(slot, block / kColumnsGroup);
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
      keep(slot, group);
    } else {
      near.load(weights, block + 1);
      end_summary();
      keep(slot, group);
      mix_groups(weights, group + 1);
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

// The warps that make results: 16 rows of a block each.
struct ColumnResults {
  const ColumnsArgs& args;
  const ColumnsShared& shared;
  int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32);
  KeyRing keys = {};
  QueryRing queries = {};
  ValueRing values = {};
  unsigned parity = 0;  // bit i: of ready(i)

  __device__ __forceinline__ void make(const ColumnsItem& item, int block, float weight) {
    const int slot = block % kColumnsGroup;
    CausalTile<128, kColumnsWidth> t;
    CausalQueries<128> q;
    barrier_wait(shared.q_landed(queries.stage), queries.parity);
    load_factors(q.step, shared.q(queries.stage));
    q.map(args.feature, args.dk);

    // Scores, and what lies before the block
    barrier_wait(shared.k_landed(keys.stage), keys.parity);
    barrier_wait(shared.k_mapped(keys.stage), keys.parity);
    wgmma_fence();
    t.issue_scores(q, shared.k(keys.stage));
    wgmma_commit();
    if (block > 0) {
      barrier_wait(shared.ready(slot), parity >> slot & 1);
      parity ^= 1u << slot;
      wgmma_fence();
      issue_far(t, q, shared.slot(slot));
      wgmma_commit();
      wgmma_wait<1>();
    } else {
      t.clear();
      wgmma_wait<0>();
    }
    hold(t.s);
    release_buffer(shared.k_empty(keys.stage));
    keys.next();
    t.template weigh<true>(weight);
    if (block > 0) {
      wgmma_wait<0>();
      release_buffer(shared.read(slot));
    }

    // The block itself
    barrier_wait(shared.v_landed(values.stage), values.parity);
    wgmma_fence();
    t.issue_outputs(shared.v(values.stage));
    wgmma_commit();
    wgmma_wait<0>();
    hold(t.o);
    release_buffer(shared.v_empty(values.stage));
    values.next();

    // Results leave through the place of their queries, which then is free.
    t.store(args.o, shared.q(queries.stage) + warp * ColumnsPlan::kWarpRows,
            {item.column, block * kTile + warp * 16, item.head, item.batch});
    if (lane == 0) store_wait_read();
    release_buffer(shared.q_empty(queries.stage));
    queries.next();
  }
  // o = phi(q) S~
  static __device__ __forceinline__ void issue_far(CausalTile<128, kColumnsWidth>& t,
                                                   const CausalQueries<128>& q,
                                                   std::uint32_t rows) {
    wgmma<bf16, kColumnsWidth, true, false>(t.o, q.step[0], Box::tokens_inner(rows, 0));
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      wgmma<bf16, kColumnsWidth, true, true>(t.o, q.step[i], Box::tokens_inner(rows, i));
    }
  }
  __device__ __forceinline__ void run() {
    each_item(args, [&](const ColumnsItem& item) {
      const ColumnWeights weights(args, item.head);
      for (int block = 0; block < args.blocks; ++block) {
        make(item, block, weights.one(block, block));
      }
    });
  }
};

__global__ void __launch_bounds__(kColumnsThreads, 1)
    causal_columns(const __grid_constant__ ColumnsArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ColumnsShared shared{ptx::shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp >= kSummaryWarps + kResultWarps) {
    give_registers<kColumnsLoaderRegisters>();
    if (threadIdx.x == kColumnsThreads - 128) copy_columns(args, shared);
  } else if (warp >= kSummaryWarps) {
    take_registers<kResultRegisters>();
    ColumnResults{args, shared}.run();
  } else {
    take_registers<kSummaryRegisters>();
    ColumnSummaries(args, shared).run();
  }
}

}  // namespace mhla::cuda::sm90
