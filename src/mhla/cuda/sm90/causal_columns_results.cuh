// The warps of the causal forward by columns that make results.
#pragma once

#include "mhla/cuda/sm90/causal_columns_mix.cuh"
#include "mhla/cuda/sm90/causal_columns_shared.cuh"
#include "mhla/cuda/sm90/causal_products.cuh"

namespace mhla::cuda::sm90 {

// 16 rows of a block each. The scores of the next block are on their way while results of this one
// are handed to the warp that stores them, and what can be done of a block without S~ is done
// before.
struct ColumnResults {
  const ColumnsArgs& args;
  const ColumnsShared& shared;
  int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32);
  KeyRing keys = {};
  QueryRing queries = {};
  ValueRing values = {};
  int out = 1;          // parity: the place of results is free
  unsigned parity = 0;  // bit i: of ready(i)
  float weight = 0;     // of block `lane` with itself
  CausalTile<128, kColumnsWidth> t = {};
  CausalQueries<128> q = {};

  __device__ __forceinline__ void load_queries() {
    barrier_wait(shared.q_landed(queries.stage), queries.parity);
    load_factors(q.step, shared.q(queries.stage));
  }
  __device__ __forceinline__ void map_queries() {
    q.map(args.feature, args.dk);
    release_buffer(shared.q_empty(queries.stage));
    queries.next();
  }
  // Not awaited
  __device__ __forceinline__ void begin_scores() {
    t.issue_scores(q, shared.k(keys.stage));
    wgmma_commit();
  }
  __device__ __forceinline__ void await_keys() const {
    barrier_wait(shared.k_landed(keys.stage), keys.parity);
    barrier_wait(shared.k_mapped(keys.stage), keys.parity);
  }
  // o = phi(q) S~
  __device__ __forceinline__ void issue_far(std::uint32_t rows) {
    wgmma<bf16, kColumnsWidth, true, false>(t.o, q.step[0], Box::tokens_inner(rows, 0));
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      wgmma<bf16, kColumnsWidth, true, true>(t.o, q.step[i], Box::tokens_inner(rows, i));
    }
  }
  // The weight of a block with itself. A lane has that of its own number for every 32.
  __device__ __forceinline__ float weight_of(int block) const {
    return __shfl_sync(0xffffffffu, weight, block);
  }
  // kFar: there are blocks before this one. more: another block follows, of this item or the next.
  template <bool kFar>
  __device__ __forceinline__ void make(int block, bool more) {
    const float own = weight_of(block);
    // NOTE: what products read from registers is made while no others are under way, or the
    // compiler has all of them one after another.
    wgmma_wait<0>();
    hold(t.s);
    release_buffer(shared.k_empty(keys.stage));
    keys.next();
    t.template weigh<true>(own);

    // o = phi(q) S~ + p v
    const int slot = block % kColumnsGroup;
    barrier_wait(shared.v_landed(values.stage), values.parity);
    if constexpr (kFar) {
      barrier_wait(shared.ready(slot), parity >> slot & 1);
      parity ^= 1u << slot;
      wgmma_fence();
      issue_far(shared.slot(slot));
    } else {
      t.clear();
      wgmma_fence();
    }
    t.issue_outputs(shared.v(values.stage));
    wgmma_commit();
    wgmma_wait<0>();
    hold(t.o);
    if (kFar) release_buffer(shared.read(slot));
    release_buffer(shared.v_empty(values.stage));
    values.next();

    if (more) {
      load_queries();
      map_queries();
      await_keys();
    }
    wgmma_fence();
    begin_scores();  // NOTE: without a next block of whatever lies there
    hand_over();
  }

  __device__ __forceinline__ void hand_over() {
    barrier_wait(shared.out_empty(), out);
#pragma unroll
    for (int g = 0; g < kColumnsWidth / 8; g += 2) {
      store_groups(shared.out() + Box::chunk(warp * 16 + lane % 16, g + lane / 16), t.o + g * 4);
    }
    release_buffer(shared.out_full());
    out ^= 1;
  }

  __device__ __forceinline__ void run() {
    load_queries();
    map_queries();
    await_keys();
    wgmma_fence();
    begin_scores();
    each_item(args, [&](const ColumnsItem& item, bool more_items) {
      weight = ColumnWeights(args, item.head).one(lane, lane);
      make<false>(0, more_items || args.blocks > 1);
      for (int block = 1; block < args.blocks; ++block) {
        make<true>(block, more_items || block + 1 < args.blocks);
      }
    });
    wgmma_wait<0>();
    hold(t.s);
  }
};

}  // namespace mhla::cuda::sm90
