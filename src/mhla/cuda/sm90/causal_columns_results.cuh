// The warps of the causal forward by columns that make results.
#pragma once

#include "mhla/cuda/sm90/causal_columns_mix.cuh"
#include "mhla/cuda/sm90/causal_columns_shared.cuh"
#include "mhla/cuda/sm90/causal_products.cuh"

namespace mhla::cuda::sm90 {

// 16 rows of a block each. The scores of the next block are on their way while results of this one
// are handed to the warp that stores them.
struct ColumnResults {
  const ColumnsArgs& args;
  const ColumnsShared& shared;
  int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32);
  KeyRing keys = {};
  ValueRing values = {};
  int queries = 0, out = 1;  // parities: queries are there, the place of results is free
  unsigned parity = 0;       // bit i: of ready(i)
  CausalTile<128, kColumnsWidth> t = {};
  CausalQueries<128> q = {};

  __device__ __forceinline__ void load_queries() {
    barrier_wait(shared.q_landed(), queries);
    load_factors(q.step, shared.q());
  }
  __device__ __forceinline__ void map_queries() {
    q.map(args.feature, args.dk);
    release_buffer(shared.q_empty());
    queries ^= 1;
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
  // kFar: there are blocks before this one. more: another block follows, of this item or the next.
  template <bool kFar>
  __device__ __forceinline__ void make(int block, float weight, bool more) {
    const int slot = block % kColumnsGroup;
    // What lies before the block
    if constexpr (kFar) {
      barrier_wait(shared.ready(slot), parity >> slot & 1);
      parity ^= 1u << slot;
      wgmma_fence();
      issue_far(shared.slot(slot));
      wgmma_commit();
    } else {
      t.clear();
    }
    // NOTE: what products read from registers is made while no others are under way, or the
    // compiler has all of them one after another.
    wgmma_wait<0>();
    hold(t.s);
    hold(t.o);
    release_buffer(shared.k_empty(keys.stage));
    keys.next();
    if (kFar) release_buffer(shared.read(slot));

    // The block itself
    if (more) load_queries();
    t.template weigh<true>(weight);
    if (more) map_queries();
    barrier_wait(shared.v_landed(values.stage), values.parity);
    if (more) await_keys();
    wgmma_fence();
    t.issue_outputs(shared.v(values.stage));
    wgmma_commit();
    begin_scores();  // NOTE: without a next block of whatever lies there
    wgmma_wait<1>();
    hold(t.o);
    release_buffer(shared.v_empty(values.stage));
    values.next();
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
      const ColumnWeights weights(args, item.head);
      float next = weights.one(1, 1);
      make<false>(0, weights.one(0, 0), more_items || args.blocks > 1);
      for (int block = 1; block < args.blocks; ++block) {
        const float weight = next;
        next = weights.one(block + 1, block + 1);
        make<true>(block, weight, more_items || block + 1 < args.blocks);
      }
    });
    wgmma_wait<0>();
    hold(t.s);
  }
};

}  // namespace mhla::cuda::sm90
