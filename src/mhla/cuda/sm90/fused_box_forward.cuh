// The forward of one head in a cluster: summaries, their mixture, the read-out. Only q, k, v and o
// cross the memory bus. See docs/kernels/fused.md.
#pragma once

#include "mhla/cuda/sm90/fused_box_mix.cuh"

namespace mhla::cuda::sm90 {

// Zeros behind the key sums (in place of values, whatever is there: nothing reads it), and for
// blocks that the mixing matrix is padded with.
template <typename X>
__device__ __forceinline__ void clear_padding(const Seat<X>& seat, const BoxArgs& args,
                                              bool backward) {
  const auto clear = [](byte* from, int chunks) {
    for (int i = static_cast<int>(threadIdx.x); i < chunks; i += X::kThreads) {
      reinterpret_cast<Chunk*>(from)[i] = Chunk{};
    }
  };
  constexpr int kUsed = X::D * 2 / 16, kAll = (kUsed + 7) / 8 * 8;  // chunks of z
  for (int slot = 0; slot < args.slots && kUsed < kAll && !X::kInPlace; ++slot) {
    clear(seat.summary(slot) + X::kKeySums + kUsed * 16, kAll - kUsed);
  }
  const auto clear_slices = [&](byte* slices, int blocks) {
    clear(slices + blocks * X::kSlice, (X::MT * 16 - blocks) * X::kSlice / 16);
  };
  clear_slices(seat.slices, args.k_grid.blocks);
  if (backward) clear_slices(seat.gradient_slices, args.q_grid.blocks);
}

// o = phi(q) S~_i over phi(q) z~_i (Eq. 4), in the place of q. kGiven: factors may be given.
template <typename X, bool kGiven = true>
__device__ __forceinline__ void read_out(const Seat<X>& seat, const BoxArgs& args,
                                         const PackedMap& map, byte* tile, const byte* summary,
                                         const BoxPlace& place) {
  using T = BoxTile<X>;
  static_assert(X::T == 1);
  typename T::Rows q;
  T::load_rows(q, seat, tile);
  map.apply(q);
  typename T::KeySums z;
  T::load_key_sums(z, summary + X::kKeySums, seat);
  float den[4] = {}, given[2];
  if (kGiven && args.factor != nullptr) load_given(given, args.factor, args, seat, place);
  if constexpr (!X::kOverlaps) T::denominators(den, q, z);
  typename T::OwnSum sum;
  wgmma_fence();
  T::template multiply_summary<false>(sum, q, summary, seat);
  wgmma_commit();
  if constexpr (X::kOverlaps) T::denominators(den, q, z);
  const bool has_given = kGiven && args.factor != nullptr;
  const float factor[2] = {has_given ? given[0] : row_factor(args, den[0]),
                           has_given ? given[1] : row_factor(args, den[2])};
  wgmma_wait<0>();
  std::uint32_t out[X::D / 4];
#pragma unroll
  for (int w = 0; w < X::D / 4; ++w) {
    out[w] = ptx::pack_bf16(sum[2 * w] * factor[w % 2], sum[2 * w + 1] * factor[w % 2]);
  }
  T::store_rows(tile, seat, out);
}

template <typename X>
__global__ void __launch_bounds__(X::kThreads, X::kPerProcessor)
    fused_box_forward(const __grid_constant__ BoxArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using M = BoxMix<X>;
  const int clusters = static_cast<int>(gridDim.x) / X::C;
  const int first_item = static_cast<int>(blockIdx.x) / X::C;
  const Seat<X> seat(shared, false, args);
  clear_padding(seat, args, false);
  M::keep_weights(args, seat);
  __syncthreads();
  cluster_arrive();

  // Pairs of tiles of a head in order: (k, v) of every key block, then two query blocks each.
  const int keys = seat.group_blocks(args.k_grid, args);
  const int queries = seat.group_blocks(args.q_grid, args);
  const int pairs = keys + (queries + 1) / 2, first = seat.rank * args.slots + seat.group;
  // count: of all pairs before; n may run over into the next heads.
  const auto start = [&](int item, int n, int count) {
    if (!seat.leads() || pairs == 0) return;
    for (; n >= pairs; n -= pairs) item += clusters;
    if (item >= args.items) return;
    const std::uint32_t barrier = seat.barrier(count);
    if (n < keys) {
      const BoxPlace at = place_of(args.k_grid, first + n * X::W, item, args.heads);
      barrier_expect(barrier, 2 * X::kTile);
      load_tile<X>(seat.tile(count, 0), args.k, at, barrier);
      load_tile<X>(seat.tile(count, 1), args.v, at, barrier);
      return;
    }
    const int query = (n - keys) * 2, some = min(2, queries - query);
    barrier_expect(barrier, some * X::kTile);
#pragma unroll 1
    for (int i = 0; i < some; ++i) {
      load_tile<X>(seat.tile(count, i), args.q,
                   place_of(args.q_grid, first + (query + i) * X::W, item, args.heads), barrier);
    }
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

  // The next mixture comes after the own summaries have left, so after this one has been read.
  // Query blocks without keys have no such order of events: there the cluster meets after the
  // read-out.
  const bool late = args.k_grid.blocks < args.q_grid.blocks;
  int count = 0, turn = 0;
  for (int item = first_item; item < args.items; item += clusters, ++turn) {
    for (int n = 0; n < keys; ++n, ++count) {
      const int slot = seat.group + n * X::W;
      seat.await(count);
      summarize(seat, map, seat.tile(count, 0), seat.tile(count, 1), seat.summary(slot));
      fence_async();
      seat.sync();
      start(item, n + X::kStages, count + X::kStages);
      if (n == 0) cluster_wait();  // every thread block can be sent the summaries of this head
      seat.distribute(slot, args, seat.slices, Arrival::summaries);
    }
    if (keys == 0) cluster_wait();
    typename M::Weights weights;
    M::template take_weights<false>(weights, args, item, seat);
    seat.await(Arrival::summaries, turn, args);
    M::mix(weights, seat.slices, args, seat, args.q_grid.blocks, Arrival::mixed);
    seat.await(Arrival::mixed, turn, args);
    fence_async();
    if (!late) cluster_arrive();

    for (int n = keys; n < pairs; ++n, ++count) {
      const int query = (n - keys) * 2, some = min(2, queries - query);
      seat.await(count);
      for (int i = 0; i < some; ++i) {
        read_out(seat, args, map, seat.tile(count, i),
                 seat.summary(seat.group + (query + i) * X::W),
                 place_of(args.q_grid, first + (query + i) * X::W, item, args.heads));
        if (X::kStages > 1 && i == 0 && n > keys) refill(item, n - 1, count - 1);
      }
      fence_async();
      seat.sync();
      if (seat.leads()) {
#pragma unroll 1
        for (int i = 0; i < some; ++i) {
          store_tile<X>(args.o, place_of(args.q_grid, first + (query + i) * X::W, item, args.heads),
                        seat.tile(count, i));
        }
        stores_commit();
      }
      __syncwarp();
      if (X::kStages == 1 || n + 1 == pairs) refill(item, n, count);
    }
    if (late) cluster_arrive();
  }
  cluster_wait();  // what this thread block sent has arrived
}

}  // namespace mhla::cuda::sm90
