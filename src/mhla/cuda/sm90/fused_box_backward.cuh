// The backward of one head in a cluster: summaries and their mixture again, then d_q and dS~, the
// gradient of the weights, dS = m^T dS~, and d_k and d_v. See docs/kernels/fused.md.
#pragma once

#include "mhla/cuda/sm90/fused_box_forward.cuh"

namespace mhla::cuda::sm90 {

// d_q of a query block, in the place of q; dS~ and dz~ in the place of S~ and z~. o is not needed:
// <d_o, o> is the row's factor times phi(q) . (S~ d_o). With shared_position factor and e are
// given, z is that of the block itself, not a mixture, and so is dz, which takes its place.
template <typename X, bool kShared>
__device__ __forceinline__ void backward_queries(const Seat<X>& seat, const BoxArgs& args,
                                                 const PackedMap& map, byte* q_tile, byte* d_tile,
                                                 byte* summary, byte* own, const BoxPlace& place,
                                                 auto&& halfway) {
  using T = BoxTile<X>;
  const int lane = seat.lane;
  std::uint32_t d_q[T::kOwnWords];
  {
    float factor[2], e[2] = {};
    if constexpr (kShared) {
      load_given(factor, args.factor, args, seat, place);
      load_given(e, args.gradient, args, seat, place);
    }
    typename T::OwnRows q;
    typename T::Rows d_o;
    T::load_own_rows(q, seat, q_tile);
    map.apply(q);
    T::load_rows(d_o, seat, d_tile);
    typename T::KeySums z;
    T::load_key_sums(z, kShared ? own : summary + X::kKeySums, seat);
    float den[4] = {};
    if constexpr (!kShared && !X::kOverlaps) T::denominators(den, q, z);
    typename T::OwnSum sum;  // S~ d_o
    wgmma_fence();
    T::template multiply_summary<true>(sum, d_o, summary, seat);
    wgmma_commit();
    if constexpr (!kShared && X::kOverlaps) T::denominators(den, q, z);
    if constexpr (!kShared && X::T == 1) {
      factor[0] = row_factor(args, den[0]);
      factor[1] = row_factor(args, den[2]);
    }
    wgmma_wait<0>();

    // e = -<d_o, o> per row; zero without a normaliser.
    if (!kShared && args.normalize) {
#pragma unroll
      for (int w = 0; w < T::kOwnWords; ++w) {
        const float2 phi = load_pair(reinterpret_cast<const bf16*>(&q[w / 4][w % 4]));
        e[w % 2] -= phi.x * sum[2 * w] + phi.y * sum[2 * w + 1];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        e[half] += __shfl_xor_sync(0xffffffffu, e[half], 1);
        e[half] += __shfl_xor_sync(0xffffffffu, e[half], 2);
        if constexpr (X::T == 1) e[half] *= factor[half];
      }
    }
    if constexpr (!kShared && X::T > 1) {
      // Both warpgroups have a part of the columns, and add the parts up in the same order.
      const int row = seat.warp * 16 + lane / 4;
      float2* own_parts = seat.parts(seat.member()) + row;
      if (lane % 4 == 0) {
        own_parts[0] = make_float2(den[0], e[0]);
        own_parts[8] = make_float2(den[2], e[1]);
      }
      seat.sync();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 one = seat.parts(0)[row + half * 8];
        const float2 other = seat.parts(1)[row + half * 8];
        factor[half] = row_factor(args, one.x + other.x);
        e[half] = (one.y + other.y) * factor[half];
      }
    }
    // d_q = (S~ d_o + e z~) factor phi'(q), and phi(q) times the factor in the place of q.
    // NOTE: the gradient of a mixing weight is a difference of what dS~ and dz~ give. They cancel
    // only if both see the same rounded rows, so dz~ is made from the scaled rows too.
    map.slopes(d_q, q, [&](int w, int i) {
      const float z_e = e[w % 2] * T::key_sum(z, w, i);
      return kShared ? fmaf(sum[2 * w + i], factor[w % 2], z_e)
                     : (sum[2 * w + i] + z_e) * factor[w % 2];
    });
    if constexpr (kShared) {
      // dz is made from the scaled rows too. Where the factor is zero, e need not be: such a row
      // keeps its size and loses its d_o instead.
      const bool none[2] = {factor[0] == 0.f, factor[1] == 0.f};
      if constexpr (X::T > 1) seat.sync();  // the other warpgroup has read the tile
      if (__any_sync(0xffffffffu, none[0] || none[1])) {
        typename T::OwnRows own_d_o;
        T::pick_own(own_d_o, d_o, seat);
        std::uint32_t rows[T::kOwnWords];
#pragma unroll
        for (int w = 0; w < T::kOwnWords; ++w) {
          rows[w] = none[w % 2] ? 0u : own_d_o[w / 4][w % 4];
        }
        T::store_rows(d_tile, seat, rows);
        fence_async();
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (none[half]) factor[half] = 1.f;
        e[half] /= factor[half];
      }
    }
    std::uint32_t scaled[T::kOwnWords];
    const std::uint32_t factors[2] = {ptx::pack_bf16(factor[0], factor[0]),
                                      ptx::pack_bf16(factor[1], factor[1])};
#pragma unroll
    for (int w = 0; w < T::kOwnWords; ++w) {
      scaled[w] = ptx::fma_bf16x2(q[w / 4][w % 4], factors[w % 2], 0x80008000u);
    }
    T::store_rows(q_tile, seat, scaled);
    if (lane % 4 == 0 && seat.member() == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // as the sum of two bf16 numbers
        bf16* at = reinterpret_cast<bf16*>(seat.scalars) + seat.warp * 16 + lane / 4 + half * 8;
        at[0] = from_float<bf16>(e[half]);
        at[64] = from_float<bf16>(e[half] - to_float(at[0]));
      }
    }
  }
  seat.sync();
  halfway();

  typename T::Words ds[T::kParts];
  float dz[T::kParts][4] = {};
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    typename T::Columns rows;
    T::load_columns(rows, seat, q_tile, part);
    const auto add_queries = [&] {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const byte* at = seat.scalars + lane / 4 % 2 * 128 + s * 32 + lane % 4 * 4;
        std::uint32_t e0 = *reinterpret_cast<const std::uint32_t*>(at);
        std::uint32_t e1 = *reinterpret_cast<const std::uint32_t*>(at + 16);
        ptx::mma_bf16(dz[part], rows[s], e0, e1);
      }
    };
    if constexpr (!X::kOverlaps) add_queries();
    typename T::Sum sum;
    wgmma_fence();
    T::multiply_tile(sum, rows, d_tile);
    wgmma_commit();
    if constexpr (X::kOverlaps) add_queries();
    wgmma_wait<0>();
    T::pack(ds[part], sum);
  }
  seat.sync();
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    const float z0 = dz[part][0] + dz[part][1], z1 = dz[part][2] + dz[part][3];
    T::store_summary(summary, seat, ds[part], kShared ? 0.f : z0, kShared ? 0.f : z1, part);
    if constexpr (kShared) T::store_key_sums(own, seat, z0, z1, part);
  }
  T::store_rows(q_tile, seat, d_q);
}

// d_k and d_v of a key block, in the places of k and v.
template <typename X>
__device__ __forceinline__ void backward_keys(const Seat<X>& seat, const PackedMap& map,
                                              byte* k_tile, byte* v_tile, const byte* summary,
                                              const byte* sums, auto&& halfway) {
  using T = BoxTile<X>;
  typename T::Rows k, v;
  const auto load_keys = [&] {
    T::load_rows(k, seat, k_tile);
    map.apply(k);
  };
  if constexpr (X::T == 1) load_keys();
  T::load_rows(v, seat, v_tile);
  typename T::KeySums z;
  T::load_key_sums(z, sums, seat);
  typename T::OwnSum d_k, d_v;
  wgmma_fence();
  T::template multiply_summary<true>(d_k, v, summary, seat);
  if constexpr (X::T > 1) {  // for want of registers one product after the other
    wgmma_commit();
    load_keys();
    wgmma_wait<0>();
    wgmma_fence();
  }
  T::template multiply_summary<false>(d_v, k, summary, seat);
  wgmma_commit();
  wgmma_wait<0>();
  if constexpr (X::T > 1) seat.sync();  // the other warpgroup has read the tiles
  halfway();
  typename T::OwnRows own;
  T::pick_own(own, k, seat);
  std::uint32_t out[T::kOwnWords];
  map.slopes(out, own, [&](int w, int i) { return d_k[2 * w + i] + T::key_sum(z, w, i); });
  T::store_rows(k_tile, seat, out);
#pragma unroll
  for (int w = 0; w < T::kOwnWords; ++w) out[w] = ptx::pack_bf16(d_v[2 * w], d_v[2 * w + 1]);
  T::store_rows(v_tile, seat, out);
}

// shared_position: z of a block, before the mixture takes its place.
template <typename X>
__device__ __forceinline__ void keep_key_sums(const Seat<X>& seat, int slot) {
  if (seat.warp == 0 && seat.member() == 0 && seat.lane < X::kOwnSums / 16) {
    reinterpret_cast<Chunk*>(seat.own_sums(slot))[seat.lane] = reinterpret_cast<const Chunk*>(
        seat.summary(slot) + X::kKeySums)[seat.lane];
  }
  __syncwarp();
}

template <typename X, bool kShared>
__global__ void __launch_bounds__(X::kThreads, X::kPerProcessor)
    fused_box_backward(const __grid_constant__ BoxArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using M = BoxMix<X>;
  const int clusters = static_cast<int>(gridDim.x) / X::C;
  const int first_item = static_cast<int>(blockIdx.x) / X::C;
  const Seat<X> seat(shared, true, args);
  clear_padding(seat, args, true);
  M::keep_weights(args, seat);
  __syncthreads();
  cluster_arrive();

  // Pairs of tiles of a head in order: (k, v), (q, d_o), and (k, v) once more.
  const int keys = seat.group_blocks(args.k_grid, args);
  const int queries = seat.group_blocks(args.q_grid, args);
  const int pairs = keys + queries + keys, first = seat.rank * args.slots + seat.group;
  const auto at_query = [&](int item, int n) {
    return place_of(args.q_grid, first + n * X::W, item, args.heads);
  };
  const auto at_key = [&](int item, int n) {
    return place_of(args.k_grid, first + n * X::W, item, args.heads);
  };
  // count: of all pairs before; n may run over into the next heads.
  const auto start = [&](int item, int n, int count) {
    if (!seat.leads() || pairs == 0) return;
    for (; n >= pairs; n -= pairs) item += clusters;
    if (item >= args.items) return;
    const std::uint32_t barrier = seat.barrier(count);
    const int query = n - keys;
    const bool over_queries = query >= 0 && query < queries;
    const BoxPlace at = over_queries ? at_query(item, query)
                                     : at_key(item, query < 0 ? n : query - queries);
    barrier_expect(barrier, 2 * X::kTile);
    load_tile<X>(seat.tile(count, 0), over_queries ? args.q : args.k, at, barrier);
    load_tile<X>(seat.tile(count, 1), over_queries ? args.d_o : args.v, at, barrier);
  };
  // Once the pair's tiles have been stored: with several stages in the middle of the next pair.
  const auto refill = [&](int item, int n, int count) {
    if (seat.leads()) {
      stores_wait();
      start(item, n + X::kStages, count + X::kStages);
    }
    __syncwarp();
  };
  const PackedMap map(args.map);
  for (int n = 0; n < X::kStages; ++n) start(first_item, n, n);

  int count = 0, turn = 0;
  for (int item = first_item; item < args.items; item += clusters, ++turn) {
    int n = 0;  // pair
    for (; n < keys; ++n, ++count) {
      const int slot = seat.group + n * X::W;
      seat.await(count);
      summarize(seat, map, seat.tile(count, 0), seat.tile(count, 1), seat.summary(slot));
      fence_async();
      seat.sync();
      start(item, n + X::kStages, count + X::kStages);
      if (n == 0) cluster_wait();  // every thread block can be sent the summaries of this head
      if constexpr (kShared) keep_key_sums(seat, slot);
      seat.distribute(slot, args, seat.slices, Arrival::summaries);
    }
    if (keys == 0) cluster_wait();
    typename M::Weights weights;
    M::template take_weights<false>(weights, args, item, seat);
    seat.await(Arrival::summaries, turn, args);
    M::mix(weights, seat.slices, args, seat, args.q_grid.blocks, Arrival::mixed);
    seat.await(Arrival::mixed, turn, args);
    fence_async();
    if constexpr (kShared) seat.sync();  // z of the blocks

    for (; n < keys + queries; ++n, ++count) {
      const int slot = seat.group + (n - keys) * X::W;
      seat.await(count);
      backward_queries<X, kShared>(seat, args, map, seat.tile(count, 0), seat.tile(count, 1),
                                   seat.summary(slot), seat.own_sums(slot),
                                   at_query(item, n - keys), [&] {
                                     if (X::kStages > 1 && n > keys) refill(item, n - 1, count - 1);
                                   });
      fence_async();
      seat.sync();
      seat.distribute(slot, args, seat.gradient_slices, Arrival::gradients);
      if (seat.leads()) {
        if (args.has_d_q) store_tile<X>(args.d_q, at_query(item, n - keys), seat.tile(count, 0));
        stores_commit();
      }
      __syncwarp();
      if (X::kStages == 1 || n + 1 == keys + queries) refill(item, n, count);
    }

    M::template take_weights<true>(weights, args, item, seat);
    seat.await(Arrival::gradients, turn, args);
    M::mix(weights, seat.gradient_slices, args, seat, args.k_grid.blocks, Arrival::mixed_gradients);
    if (args.partial) M::add_gradient(args, seat, item, turn == 0);
    seat.await(Arrival::mixed_gradients, turn, args);
    fence_async();
    cluster_arrive();

    for (; n < pairs; ++n, ++count) {
      const int key = n - keys - queries;
      seat.await(count);
      const int slot = seat.group + key * X::W;
      const byte* summary = seat.summary(slot);
      backward_keys(seat, map, seat.tile(count, 0), seat.tile(count, 1), summary,
                    kShared ? seat.own_sums(slot) : summary + X::kKeySums, [&] {
                      if (X::kStages > 1 && key > 0) refill(item, n - 1, count - 1);
                    });
      fence_async();
      seat.sync();
      if (seat.leads()) {
        if (args.has_d_k) store_tile<X>(args.d_k, at_key(item, key), seat.tile(count, 0));
        if (args.has_d_v) store_tile<X>(args.d_v, at_key(item, key), seat.tile(count, 1));
        stores_commit();
      }
      __syncwarp();
      if (X::kStages == 1 || n + 1 == pairs) refill(item, n, count);
    }
  }
  cluster_wait();  // what this thread block sent has arrived
}

}  // namespace mhla::cuda::sm90
