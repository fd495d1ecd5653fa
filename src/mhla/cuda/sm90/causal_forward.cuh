// Causal forward without a normaliser: o = tril(m * phi(q) phi(k)^T) v, scores in registers.
#pragma once

#include "mhla/cuda/sm90/causal_products.cuh"

namespace mhla::cuda::sm90 {

template <int DK, int DV>
struct CausalShared {
  static constexpr CausalPlan kPlan = causal_plan(DK, DV);
  static constexpr int kKeyStages = kPlan.k_stages, kValueStages = kPlan.v_stages;
  std::uint32_t base;

  // Barriers: keys have landed, have passed the feature map, their buffer is free again; values
  // have landed, are free; the same of q.
  __device__ __forceinline__ std::uint32_t landed(int stage) const { return barrier(stage); }
  __device__ __forceinline__ std::uint32_t full(int stage) const { return barrier(6 + stage); }
  __device__ __forceinline__ std::uint32_t empty(int stage) const { return barrier(12 + stage); }
  __device__ __forceinline__ std::uint32_t v_full(int stage) const { return barrier(18 + stage); }
  __device__ __forceinline__ std::uint32_t v_empty(int stage) const { return barrier(24 + stage); }
  __device__ __forceinline__ std::uint32_t q_full() const { return barrier(30); }
  __device__ __forceinline__ std::uint32_t q_empty() const { return barrier(31); }
  __device__ __forceinline__ std::uint32_t k(int stage) const {
    return base + stage * kTile * DK * 2;
  }
  __device__ __forceinline__ std::uint32_t v(int stage) const {
    return base + kPlan.v + stage * kTile * DV * 2;
  }
  __device__ __forceinline__ std::uint32_t q(int warpgroup) const {
    return base + kPlan.q + warpgroup * kTile * DK * 2;
  }

  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
    constexpr int kComputeWarps = 8;
#pragma unroll
    for (int i = 0; i < kKeyStages; ++i) {
      barrier_init(landed(i), 1);
      barrier_init(full(i), kCausalMapWarps * kWarpArrivals);
      barrier_init(empty(i), kComputeWarps * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i < kValueStages; ++i) {
      barrier_init(v_full(i), 1);
      barrier_init(v_empty(i), kComputeWarps * kWarpArrivals);
    }
    barrier_init(q_full(), 1);
    barrier_init(q_empty(), kComputeWarps * kWarpArrivals);
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + kPlan.barriers + 8 * i;
  }
};

// Row tiles of a thread block: the x-th from the end and the x-th of a group in turn, so that two
// of them always see as many keys. Groups that see nothing far come first.
struct CausalWork {
  const CausalArgs& args;
  int item, part = 0, number = 0;  // number: row tiles so far
  int pair, head, batch;           // pair: in `far`
  int first, rows;                 // first key tile of the group; row tile of 128 queries

  __device__ __forceinline__ explicit CausalWork(const CausalArgs& a)
      : args(a), item(static_cast<int>(blockIdx.x)) {
    place();
  }
  __device__ __forceinline__ bool done() const { return item >= args.items; }
  __device__ __forceinline__ void next() {
    ++number;
    const int other = first / 2 + item % args.units;
    if (part == 0 && rows != other) {
      part = 1;
      rows = other;
      return;
    }
    part = 0;
    item += static_cast<int>(gridDim.x);
    place();
  }
  // Key tiles of the group that some of its queries see.
  __device__ __forceinline__ int keys() const {
    return max(min(2 * rows + 2, args.tiles) - first, 0);
  }
  __device__ __forceinline__ bool far() const { return first > 0 && 2 * rows < args.tiles; }

 private:
  __device__ __forceinline__ void place() {
    const int group = item / args.group_items, rest = item - group * args.group_items;
    pair = rest / args.units;
    batch = (args.first_pair + pair) / args.heads;
    head = args.first_pair + pair - batch * args.heads;
    first = group * args.group_tiles;
    rows = (first + args.group_tiles) / 2 - 1 - item % args.units;
  }
};

// S~ of two blocks through the ring of values: a half for each warpgroup, then the others.
template <typename Shared, typename Ring>
__device__ __forceinline__ void copy_far_rows(const CausalArgs& args, const Shared& shared,
                                              const CausalWork& work, Ring& ring, bool& waited) {
  constexpr int kHalf = kFarParts / 2 * kBoxBytes;
  if (!waited) asm volatile("griddepcontrol.wait;\n" ::: "memory");  // for the kernel that made it
  waited = true;
  const std::int64_t row = static_cast<std::int64_t>(work.pair) * args.far_rows + 2 * work.rows -
                           args.group_tiles;
  const unsigned char* from = static_cast<const unsigned char*>(args.far) + row * 2 * kHalf;
#pragma unroll 1
  for (int i = 0; i < 4; ++i, ring.next()) {
    barrier_wait(shared.v_empty(ring.stage), ring.parity ^ 1);
    arrive_and_expect(shared.v_full(ring.stage), kHalf);
    copy_linear(shared.v(ring.stage), from + (i % 2 * 2 + i / 2) * kHalf, kHalf,
                shared.v_full(ring.stage));
  }
}

template <int DK, int DV>
__device__ __forceinline__ void copy_causal(const CausalArgs& args,
                                            const CausalShared<DK, DV>& shared) {
  bool waited = false;
  CausalRing<CausalShared<DK, DV>::kKeyStages> ring;
  CausalRing<CausalShared<DK, DV>::kValueStages> v_ring;
  for (CausalWork work(args); !work.done(); work.next()) {
    barrier_wait(shared.q_empty(), work.number & 1 ^ 1);
    arrive_and_expect(shared.q_full(), kCausalRows * DK * 2);
#pragma unroll
    for (int i = 0; i < 2 * DK / 64; ++i) {
      copy_box(shared.q(0) + i * kBoxBytes, args.q,
               {i % (DK / 64) * 64, work.rows * kCausalRows + i / (DK / 64) * kTile, work.head,
                work.batch},
               shared.q_full());
    }
    const int end = work.first + work.keys();
    for (int tile = work.first; tile < end; ++tile, ring.next(), v_ring.next()) {
      const std::uint32_t landed = shared.landed(ring.stage);
      barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      arrive_and_expect(landed, kTile * DK * 2);
#pragma unroll
      for (int i = 0; i < DK / 64; ++i) {
        copy_box(shared.k(ring.stage) + i * kBoxBytes, args.k,
                 {i * 64, tile * kTile, work.head, work.batch}, landed);
      }
      if constexpr (DK == 128 && DV == 256) {
        if (tile == work.first && work.far()) copy_far_rows(args, shared, work, v_ring, waited);
      }
      const std::uint32_t v_full = shared.v_full(v_ring.stage);
      barrier_wait(shared.v_empty(v_ring.stage), v_ring.parity ^ 1);
      arrive_and_expect(v_full, kTile * DV * 2);
#pragma unroll
      for (int i = 0; i < DV / 64; ++i) {
        copy_box(shared.v(v_ring.stage) + i * kBoxBytes, args.v,
                 {i * 64, tile * kTile, work.head, work.batch}, v_full);
      }
    }
  }
}

// NOTE: columns past dk become phi(0) too, and meet zeros of q.
template <int DK, int DV, typename Map>
__device__ __forceinline__ void map_causal(const CausalArgs& args,
                                           const CausalShared<DK, DV>& shared, const Map& map) {
  const int thread = static_cast<int>(threadIdx.x) - (kCausalThreads - 32 * kCausalMapWarps);
  CausalRing<CausalShared<DK, DV>::kKeyStages> ring;
  for (CausalWork work(args); !work.done(); work.next()) {
    for (int tile = 0; tile < work.keys(); ++tile, ring.next()) {
      barrier_wait(shared.landed(ring.stage), ring.parity);
      map_rows<kTile * DK / 8>(shared.k(ring.stage), thread, map);
      release_buffer(shared.full(ring.stage));
    }
  }
}

// The mixing weights of a tile of queries with one tile of keys after another, times the scale.
struct CausalWeights {
  const float* at;
  std::int64_t stride;
  float scale;
  int tiles, left;  // tiles of a block, and how many of them are to come

  // NOTE: groups start with a block.
  __device__ __forceinline__ CausalWeights(const CausalArgs& args, int head, int tile, int first)
      : at(args.mixing + head * args.mixing_head_stride +
           tile / args.block_tiles * args.mixing_row_stride +
           first / args.block_tiles * args.mixing_column_stride),
        stride(args.mixing_column_stride),
        scale(args.scale),
        tiles(args.block_tiles),
        left(args.block_tiles) {}
  __device__ __forceinline__ float next() {
    const float weight = __ldg(at) * scale;
    if (--left == 0) left = tiles, at += stride;
    return weight;
  }
};

template <int DK, int DV>
__device__ __forceinline__ void compute_causal(const CausalArgs& args,
                                               const CausalShared<DK, DV>& shared) {
  using Shared = CausalShared<DK, DV>;
  constexpr bool kFar = DK == 128 && DV == 256;
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t out = shared.base + Shared::kPlan.o + warp * 16 * (DV < 128 ? DV : 128) * 2;
  CausalRing<Shared::kKeyStages> ring;
  CausalRing<Shared::kValueStages> v_ring;
  const auto wait_keys = [&] {
    barrier_wait(shared.landed(ring.stage), ring.parity);
    barrier_wait(shared.full(ring.stage), ring.parity);
  };
  const auto release_keys = [&] {
    release_buffer(shared.empty(ring.stage));
    ring.next();
  };
  const auto wait_values = [&] { barrier_wait(shared.v_full(v_ring.stage), v_ring.parity); };
  const auto release_values = [&] {
    release_buffer(shared.v_empty(v_ring.stage));
    v_ring.next();
  };
  const auto skip_values = [&](int count) {
    for (int i = 0; i < count; ++i) {
      wait_values();
      release_values();
    }
  };
  for (CausalWork work(args); !work.done(); work.next()) {
    const int tile = 2 * work.rows + warpgroup;  // of 64 queries
    const int keys = tile < args.tiles ? tile + 1 - work.first : 0;
    barrier_wait(shared.q_full(), work.number & 1);
    if (keys == 0) {
      release_buffer(shared.q_empty());
      if (work.far()) skip_values(4);
    }
    if (keys > 0) {
      CausalWeights weights(args, work.head, tile, work.first);
      CausalTile<DK, DV> t;
      CausalQueries<DK> q;
      load_factors(q.step, shared.q(warpgroup));
      q.map(args.feature, args.dk);
      float w = weights.next();
      t.clear();

      // Scores of the first keys, and what lies before the group
      bool far = false;
      if constexpr (kFar) {
        far = work.far();
        if (far) {
          skip_values(warpgroup);
          wait_values();
          wait_keys();
          wgmma_fence();
          t.template issue_far<0>(q, shared.v(v_ring.stage));
          t.issue_scores(q, shared.k(ring.stage));
          wgmma_commit();
          wgmma_wait<0>();
          release_values();
          skip_values(1);  // of the other warpgroup: the half of this one that is done or the next
          wait_values();
          wgmma_fence();
          t.template issue_far<1>(q, shared.v(v_ring.stage));
          wgmma_commit();
          wgmma_wait<0>();
          release_values();
          skip_values(1 - warpgroup);
        }
      }
      if (!far) {
        wait_keys();
        wgmma_fence();
        t.issue_scores(q, shared.k(ring.stage));
        wgmma_commit();
        wgmma_wait<0>();
      }
      release_keys();
      release_buffer(shared.q_empty());  // NOTE: not before the products have used what was loaded

      // Results of these keys beside the scores of the next
      for (int key = 1; key < keys; ++key) {
        t.template weigh<false>(w);
        w = weights.next();
        wait_values();
        wait_keys();
        wgmma_fence();
        t.issue_outputs(shared.v(v_ring.stage));
        t.issue_scores(q, shared.k(ring.stage));
        wgmma_commit();
        wgmma_wait<0>();
        release_values();
        release_keys();
      }

      // The diagonal
      t.template weigh<true>(w);
      wait_values();
      wgmma_fence();
      t.issue_outputs(shared.v(v_ring.stage));
      wgmma_commit();
      wgmma_wait<0>();
      release_values();
      t.store(args.o, out, {0, tile * kTile + warp % 4 * 16, work.head, work.batch});
    }
    // Keys that only the other warpgroup sees
    for (int key = keys; key < work.keys(); ++key) {
      wait_keys();
      release_keys();
      wait_values();
      release_values();
    }
  }
  if (lane == 0) store_wait_read();
}

template <int DK, int DV>
__global__ void __launch_bounds__(kCausalThreads, 1)
    causal_forward(const __grid_constant__ CausalArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const CausalShared<DK, DV> shared{ptx::shared_address(memory)};
  if (threadIdx.x == 256) shared.init_barriers();
  __syncthreads();
  if (threadIdx.x >= 256) {
    give_registers<kCausalLoaderRegisters>();
    if (threadIdx.x >= 288) {
      if (args.feature == Feature::elu1) {
        map_causal(args, shared,
                   [](std::uint32_t x) { return feature_pair<bf16, Feature::elu1>(x); });
      } else {
        map_causal(args, shared, PairMap<bf16>(args.feature));
      }
    } else if (threadIdx.x == 256) {
      copy_causal(args, shared);
    }
    return;
  }
  take_registers<kCausalRegisters>();
  compute_causal(args, shared);
}

}  // namespace mhla::cuda::sm90
