// The last step of the causal backward without a normaliser, a block of 64 tokens at a time:
//   d_q = scale d_o S~^T + P' phi(k), d_k = v dS^T + P'^T phi(q), d_v = phi(k) dS + P^T d_o,
// where P = m_ii scale tril(phi(q) phi(k)^T) and P' = m_ii scale tril(d_o v^T). A warpgroup makes
// each of the three; columns of dv stream by, 64 at a time.
#pragma once

#include "mhla/cuda/sm90/causal_backward.h"
#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

struct GradientShared {
  using P = CausalGradientPlan;
  std::uint32_t base;

  // Barriers: a stage has landed, is free again; rows have landed, have passed the feature map,
  // are free again.
  __device__ __forceinline__ std::uint32_t landed(int i) const { return barrier(i); }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return barrier(3 + i); }
  __device__ __forceinline__ std::uint32_t rows_landed(int i) const { return barrier(6 + i); }
  __device__ __forceinline__ std::uint32_t rows_full(int i) const { return barrier(8 + i); }
  __device__ __forceinline__ std::uint32_t rows_empty(int i) const { return barrier(10 + i); }

  __device__ __forceinline__ std::uint32_t d_o(int stage) const { return base + stage * P::kStage; }
  __device__ __forceinline__ std::uint32_t v(int stage) const { return d_o(stage) + kBoxBytes; }
  __device__ __forceinline__ std::uint32_t mixed(int stage) const { return v(stage) + kBoxBytes; }
  __device__ __forceinline__ std::uint32_t gradient(int stage) const {
    return mixed(stage) + P::kMatrix;
  }
  __device__ __forceinline__ std::uint32_t q(int i) const {
    return base + P::kRowsAt + i * 2 * P::kRows;
  }
  __device__ __forceinline__ std::uint32_t k(int i) const { return q(i) + P::kRows; }
  // Where a computing warp leaves results for the copy engine.
  __device__ __forceinline__ std::uint32_t out(int warp) const {
    return base + P::kOut +
           (warp < 8 ? warp * P::kOutWarp : 8 * P::kOutWarp + (warp - 8) * P::kOutWarpValues);
  }
  __device__ __forceinline__ std::uint32_t term(int warp) const {
    return base + P::kTerms + 4 * warp;
  }

  // By one thread.
  __device__ __forceinline__ void init_barriers() const {
    constexpr int kComputeWarps = 12;
#pragma unroll
    for (int i = 0; i < P::kStages; ++i) {
      barrier_init(landed(i), 1);
      barrier_init(empty(i), kComputeWarps * kWarpArrivals);
    }
#pragma unroll
    for (int i = 0; i < P::kRowBuffers; ++i) {
      barrier_init(rows_landed(i), 1);
      barrier_init(rows_full(i), kCausalMapWarps * kWarpArrivals);
      barrier_init(rows_empty(i), kComputeWarps * kWarpArrivals);
    }
    fence_barrier_init();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return base + P::kBarriers + 8 * i;
  }
};

// The blocks of a thread block in turn, and where its rings are.
struct GradientWork {
  const CausalGradientArgs& args;
  int item, step, pair, block, head, batch;
  CausalRing<CausalGradientPlan::kRowBuffers> rows;

  __device__ __forceinline__ GradientWork(const CausalGradientArgs& a, CausalShare share)
      : args(a), item(share.first), step(share.step) {
    place();
  }
  __device__ __forceinline__ bool done() const { return item >= args.items; }
  __device__ __forceinline__ void next() {
    item += step;
    rows.next();
    place();
  }

 private:
  __device__ __forceinline__ void place() {
    pair = item / args.blocks;
    block = item - pair * args.blocks;
    batch = pair / args.heads;
    head = pair - batch * args.heads;
  }
};
using GradientRing = CausalRing<CausalGradientPlan::kStages>;

// `order` says when the summaries of a pair are mixed.
template <typename Order>
__device__ __forceinline__ void copy_gradient(const CausalGradientArgs& args,
                                              const GradientShared& shared, CausalShare share,
                                              const Order& order) {
  using P = CausalGradientPlan;
  GradientRing ring;
  for (GradientWork work(args, share); !work.done(); work.next()) {
    const int token = work.block * kTile, row = work.rows.stage;
    const std::uint32_t rows = shared.rows_landed(row);
    barrier_wait(shared.rows_empty(row), work.rows.parity ^ 1);
    arrive_and_expect(rows, 2 * P::kRows);
#pragma unroll
    for (int i = 0; i < kGradientWidth / 64; ++i) {
      const BoxStart start{i * 64, token, work.head, work.batch};
      copy_box_once(shared.q(row) + i * kBoxBytes, args.q, start, rows);
      copy_box_once(shared.k(row) + i * kBoxBytes, args.k, start, rows);
    }
    for (int c = 0; c < args.columns; ++c, ring.next()) {
      const int stage = ring.stage;
      const std::uint32_t landed = shared.landed(stage);
      barrier_wait(shared.empty(stage), ring.parity ^ 1);
      const bool first = work.block == 0, last = work.block == args.blocks - 1;
      arrive_and_expect(landed, P::kStage - (first + last) * P::kMatrix);
      const BoxStart start{c * 64, token, work.head, work.batch};
      copy_box_once(shared.d_o(stage), args.d_o, start, landed);
      copy_box_once(shared.v(stage), args.v, start, landed);
      const int summary = work.pair % args.slots * args.blocks + work.block;
      const BoxStart matrix{c % 2 * 64, (summary * 2 + c / 2) * kGradientWidth, 0, 0};
      if (c == 0) order.await(work.pair);
      if (!first) copy_box_once(shared.mixed(stage), args.mixed, matrix, landed);
      if (!last) copy_box_once(shared.gradient(stage), args.gradient, matrix, landed);
    }
  }
}

template <typename Map>
__device__ __forceinline__ void map_gradient(const CausalGradientArgs& args,
                                             const GradientShared& shared, CausalShare share,
                                             const Map& map) {
  const int thread = static_cast<int>(threadIdx.x) - (kGradientThreads - 32 * kCausalMapWarps);
  for (GradientWork work(args, share); !work.done(); work.next()) {
    const int row = work.rows.stage;
    barrier_wait(shared.rows_landed(row), work.rows.parity);
    map_rows<2 * CausalGradientPlan::kRows / 16>(shared.q(row), thread, map);
    release_buffer(shared.rows_full(row));
  }
}

__device__ __forceinline__ void wait_rows(const GradientShared& shared, const GradientWork& work) {
  barrier_wait(shared.rows_landed(work.rows.stage), work.rows.parity);
  barrier_wait(shared.rows_full(work.rows.stage), work.rows.parity);
}

template <int kSize>
__device__ __forceinline__ void clear_sum(float (&x)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) x[i] = 0.f;
}

// A triangle of 64 x 64 sums times a factor, as first factors. Rows are queries, or keys when
// transposed.
template <bool kTransposed>
__device__ __forceinline__ void round_triangle(std::uint32_t (&p)[4][4], const float (&x)[32],
                                               float factor) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int column = i / 2 * 8 + lane % 4 * 2, r = row + i % 2 * 8;
    const bool lo = kTransposed ? column >= r : column <= r;
    const bool hi = kTransposed ? column + 1 >= r : column + 1 <= r;
    p[i / 4][i % 4] = ptx::pack_bf16(lo ? x[2 * i] * factor : 0.f,
                                     hi ? x[2 * i + 1] * factor : 0.f);
  }
}

// phi(k) phi(q)^T: keys are rows, and all queries or half of them columns.
template <int kSize>
__device__ __forceinline__ void issue_transposed_scores(float (&s)[kSize], std::uint32_t k,
                                                        std::uint32_t q) {
  wgmma_shared<bf16, false>(s, Box::columns_inner(k, 0), Box::columns_inner(q, 0));
#pragma unroll
  for (int i = 1; i < kGradientWidth / 16; ++i) {
    wgmma_shared<bf16, true>(s, Box::columns_inner(k + i / 4 * kBoxBytes, i % 4),
                             Box::columns_inner(q + i / 4 * kBoxBytes, i % 4));
  }
}

// Gradient of rows that passed the feature map, to memory: 16 rows a warp, 32 columns at a time.
__device__ __forceinline__ void store_rows_gradient(const CausalGradientArgs& args,
                                                    const CUtensorMap& map, std::uint32_t rows,
                                                    std::uint32_t out, float (&d)[64],
                                                    BoxStart start) {
  using Half = SwizzledTile<32>;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  const Slope<bf16> slope(args.feature);
#pragma unroll
  for (int first = 0; first < kGradientWidth; first += 32) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      // The layout of factors is that of sums: words of rows r and r + 8, chunk by chunk.
      const int chunk = first / 8 + 2 * s;
      std::uint32_t phi[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(phi[0]), "=r"(phi[1]), "=r"(phi[2]), "=r"(phi[3])
                   : "r"(rows + chunk / 8 * kBoxBytes + Box::chunk(row, chunk % 8 + lane / 16))
                   : "memory");
      float* x = d + chunk * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 value = unpack_pair<bf16>(phi[i]);
        x[2 * i] *= slope(value.x);
        x[2 * i + 1] *= slope(value.y);
      }
    }
    if (lane == 0) store_wait_read();
    __syncwarp();
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      store_groups(out + Half::chunk(lane % 16, 2 * s + lane / 16), d + (first / 8 + 2 * s) * 4);
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      start.column = first;
      store_box_once(map, start, out);
      store_commit();
    }
  }
}

// d_q, or d_k when transposed: the roles of queries and keys, d_o and v, S~ and dS change.
template <bool kTransposed>
__device__ __forceinline__ void compute_rows_gradient(const CausalGradientArgs& args,
                                                      const GradientShared& shared,
                                                      CausalShare share) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  GradientRing ring;
  for (GradientWork work(args, share); !work.done(); work.next()) {
    // S~ of the first block and dS of the last are zero, and were not made.
    const bool zero = work.block == (kTransposed ? args.blocks - 1 : 0);
    float d[kGradientWidth / 2], p[kTile / 2];
    clear_sum(d);
    clear_sum(p);
    for (int c = 0; c < args.columns; ++c, ring.next()) {
      const std::uint32_t d_o = shared.d_o(ring.stage), v = shared.v(ring.stage);
      const std::uint32_t other = kTransposed ? d_o : v;
      const std::uint32_t matrix = kTransposed ? shared.gradient(ring.stage)
                                               : shared.mixed(ring.stage);
      barrier_wait(shared.landed(ring.stage), ring.parity);
      std::uint32_t a[kGradientColumns / 16][4];
      load_factors(a, kTransposed ? v : d_o);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kGradientColumns / 16; ++i) {
        wgmma<bf16, kTile, false, true>(p, a[i], Box::columns_inner(other, i));
      }
      if (!zero) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kGradientColumns / 16; ++i) {
          wgmma<bf16, kGradientWidth, false, true>(d, a[i], Box::columns_inner(matrix, i));
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      release_buffer(shared.empty(ring.stage));
    }

    // Through the scores of the own block
    const int row = work.rows.stage;
    const std::uint32_t q = shared.q(row), k = shared.k(row);
    wait_rows(shared, work);
    if constexpr (kTransposed) {  // gradient of m_ii
      float term = 0.f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // NOTE: registers are short
        float s[kTile / 4];
        wgmma_fence();
        issue_transposed_scores(s, k, q + half * kBoxBytes / 2);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int column = half * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2;
          const int r = warp % 4 * 16 + lane / 4 + i % 4 / 2 * 8;
          if (column >= r) term += s[i] * p[half * 16 + i];
        }
      }
      term = ptx::sum_of_warp(term);
      if (lane == 0) {
        asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(shared.term(warp % 4)), "f"(term)
                     : "memory");
      }
      ptx::sync_warps(1, 128);
      if (threadIdx.x % 128 == 0) {  // in a fixed order
        float total = 0.f;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          float part;
          asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(part) : "r"(shared.term(w)) : "memory");
          total += part;
        }
        const std::int64_t pair = static_cast<std::int64_t>(work.batch) * args.heads + work.head;
        args.terms[pair * args.blocks + work.block] = total * args.scale;
      }
      ptx::sync_warps(1, 128);
    } else {
#pragma unroll
      for (int i = 0; i < kGradientWidth / 2; ++i) d[i] *= args.scale;
    }
    std::uint32_t a[kTile / 16][4];
    round_triangle<kTransposed>(a, p, __ldg(args.diagonal + work.block) * args.scale);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      wgmma<bf16, kGradientWidth, true, true>(d, a[i], tokens_of_boxes(kTransposed ? q : k, i));
    }
    wgmma_commit();
    wgmma_wait<0>();
    store_rows_gradient(args, kTransposed ? args.d_k : args.d_q, kTransposed ? k : q,
                        shared.out(warp), d,
                        {0, work.block * kTile + warp % 4 * 16, work.head, work.batch});
    release_buffer(shared.rows_empty(row));
  }
  if (lane == 0) store_wait_read();
}

// `order` is told when the summaries of a block have been read.
template <typename Order>
__device__ __forceinline__ void compute_values_gradient(const CausalGradientArgs& args,
                                                        const GradientShared& shared,
                                                        CausalShare share, const Order& order) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t out = shared.out(warp);
  GradientRing ring;
  for (GradientWork work(args, share); !work.done(); work.next()) {
    const int row = work.rows.stage;
    std::uint32_t p[kTile / 16][4], k[kGradientWidth / 16][4];
    wait_rows(shared, work);
    {
      float s[kTile / 2];
      wgmma_fence();
      issue_transposed_scores(s, shared.k(row), shared.q(row));
      wgmma_commit();
      wgmma_wait<0>();
      round_triangle<true>(p, s, __ldg(args.diagonal + work.block) * args.scale);
    }
    load_factors(k, shared.k(row));
    for (int c = 0; c < args.columns; ++c, ring.next()) {
      float d[kGradientColumns / 2];
      const std::uint32_t matrix = shared.gradient(ring.stage);
      barrier_wait(shared.landed(ring.stage), ring.parity);
      wgmma_fence();
      wgmma<bf16, kGradientColumns, true, false>(d, p[0],
                                                 Box::tokens_inner(shared.d_o(ring.stage), 0));
#pragma unroll
      for (int i = 1; i < kTile / 16; ++i) {
        wgmma<bf16, kGradientColumns, true, true>(d, p[i],
                                                  Box::tokens_inner(shared.d_o(ring.stage), i));
      }
      if (work.block < args.blocks - 1) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kGradientWidth / 16; ++i) {
          wgmma<bf16, kGradientColumns, true, true>(d, k[i], Box::tokens_inner(matrix, i));
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      release_buffer(shared.empty(ring.stage));
      if (c == 0) release_buffer(shared.rows_empty(row));
      if (c == args.columns - 1 && warp == 8 && lane == 0) order.done(work.pair);
      if (lane == 0) store_wait_read();
      __syncwarp();
#pragma unroll
      for (int g = 0; g < kGradientColumns / 8; g += 2) {
        store_groups(out + Box::chunk(lane % 16, g + lane / 16), d + g * 4);
      }
      fence_async();
      __syncwarp();
      if (lane == 0) {
        store_box_once(args.d_v,
                       {c * 64, work.block * kTile + warp % 4 * 16, work.head, work.batch}, out);
        store_commit();
      }
    }
  }
  if (lane == 0) store_wait_read();
}

// The loading warpgroup: one thread copies, three warps map.
template <typename Order>
__device__ __forceinline__ void load_gradient(const CausalGradientArgs& args,
                                              const GradientShared& shared, CausalShare share,
                                              const Order& order) {
  if (threadIdx.x >= kGradientThreads - 32 * kCausalMapWarps) {
    if (args.feature == Feature::elu1) {
      map_gradient(args, shared, share,
                   [](std::uint32_t x) { return feature_pair<bf16, Feature::elu1>(x); });
    } else {
      map_gradient(args, shared, share, PairMap<bf16>(args.feature));
    }
  } else if (threadIdx.x % 128 == 0) {
    copy_gradient(args, shared, share, order);
  }
}

}  // namespace mhla::cuda::sm90
