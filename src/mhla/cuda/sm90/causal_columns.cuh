// Causal forward without a normaliser, 64 columns of dv at a time, summaries on the chip:
//   o_i = phi(q_i) S~_i + m_ii tril(phi(q_i) phi(k_i)^T) v_i,  S~_i = sum over j < i of m_ij S_j.
//
// Two warpgroups make S_i = phi(k_i)^T v_i, 64 rows of dk each, and mix; a third makes the results
// of a block; one thread loads.
#pragma once

#include "mhla/cuda/sm90/causal_columns_summaries.cuh"
#include "mhla/cuda/sm90/causal_forward.cuh"

namespace mhla::cuda::sm90 {

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
      float next = weights.one(0, 0);
      for (int block = 0; block < args.blocks; ++block) {
        const float weight = next;
        next = weights.one(block + 1, block + 1);
        make(item, block, weight);
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
