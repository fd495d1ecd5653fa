// The backward of one head in a cluster where every team has one block: its keys and values stay
// until their gradients take their place. See docs/kernels/fused.md.
#pragma once

#include "mhla/cuda/sm90/fused_box_backward.cuh"

namespace mhla::cuda::sm90 {

// Two pairs of tiles take turns: keys and values of a head in one, queries and d_o in the other,
// which the next head's keys and values follow. NOTE: there are as many query blocks as key blocks.
template <typename X, bool kShared>
__global__ void __launch_bounds__(X::kThreads, X::kPerProcessor)
    fused_slot_backward(const __grid_constant__ BoxArgs args) {
  static_assert(X::kStages == 2 && X::MT * 16 <= X::C * X::W);
  extern __shared__ __align__(1024) unsigned char shared[];
  using M = BoxMix<X>;
  const int clusters = static_cast<int>(gridDim.x) / X::C;
  const int first_item = static_cast<int>(blockIdx.x) / X::C;
  const Seat<X> seat(shared, true, args);
  clear_padding(seat, args, true);
  M::keep_weights(args, seat);
  __syncthreads();
  cluster_arrive();

  const bool has_block = seat.group < seat.own_blocks(args.q_grid, args);
  const int block = seat.rank * args.slots + seat.group;
  byte *const summary = seat.summary(seat.group), *const own = seat.own_sums(seat.group);
  // Every pair of tiles is filled once a head.
  const auto load_pair = [&](int pair, const TensorMap& one, const TensorMap& other,
                             const BoxPlace& at) {
    const std::uint32_t barrier = seat.barrier(pair);
    barrier_expect(barrier, 2 * X::kTile);
    load_tile<X>(seat.tile(pair, 0), one, at, barrier);
    load_tile<X>(seat.tile(pair, 1), other, at, barrier);
  };
  const auto load_keys = [&](int item, int turn) {
    if (!seat.leads() || !has_block || item >= args.items) return;
    load_pair(turn, args.k, args.v, place_of(args.k_grid, block, item, args.heads));
  };
  const auto load_queries = [&](int item, int turn) {
    if (!seat.leads() || !has_block || item >= args.items) return;
    load_pair(turn + 1, args.q, args.d_o, place_of(args.q_grid, block, item, args.heads));
  };
  const PackedMap map(args.map);
  load_keys(first_item, 0);
  load_queries(first_item, 0);

  int turn = 0;
  for (int item = first_item; item < args.items; item += clusters, ++turn) {
    byte *const k_tile = seat.tile(turn, 0), *const v_tile = seat.tile(turn, 1);
    if (has_block) {
      barrier_wait(seat.barrier(turn), turn % 2);
      summarize(seat, map, k_tile, v_tile, summary);
      fence_async();
      seat.sync();
    }
    cluster_wait();  // every thread block can be sent the summaries of this head
    if (has_block) {
      if constexpr (kShared) keep_key_sums(seat, seat.group);
      seat.distribute(seat.group, args, seat.slices, Arrival::summaries);
      if (turn > 0 && seat.leads()) {
        stores_wait();  // d_k and d_v of the head before have left the tiles
        load_queries(item, turn);
      }
      __syncwarp();
    }
    typename M::Weights weights;
    M::template take_weights<false>(weights, args, item, seat);
    seat.await(Arrival::summaries, turn, args);
    M::mix(weights, seat.slices, args, seat, args.q_grid.blocks, Arrival::mixed);
    seat.await(Arrival::mixed, turn, args);
    fence_async();

    if (has_block) {
      byte *const q_tile = seat.tile(turn + 1, 0), *const d_tile = seat.tile(turn + 1, 1);
      const BoxPlace at = place_of(args.q_grid, block, item, args.heads);
      barrier_wait(seat.barrier(turn + 1), turn % 2);
      if constexpr (kShared) seat.sync();  // z of the block
      backward_queries<X, kShared>(seat, args, map, q_tile, d_tile, summary, own, at, [] {});
      fence_async();
      seat.sync();
      seat.distribute(seat.group, args, seat.gradient_slices, Arrival::gradients);
      if (seat.leads()) {
        if (args.has_d_q) store_tile<X>(args.d_q, at, q_tile);
        stores_commit();
        stores_wait();
        load_keys(item + clusters, turn + 1);
      }
      __syncwarp();
    }

    M::template take_weights<true>(weights, args, item, seat);
    seat.await(Arrival::gradients, turn, args);
    M::mix(weights, seat.gradient_slices, args, seat, args.k_grid.blocks, Arrival::mixed_gradients);
    if (args.partial) M::add_gradient(args, seat, item, turn == 0);
    seat.await(Arrival::mixed_gradients, turn, args);
    fence_async();
    cluster_arrive();

    if (has_block) {
      const BoxPlace at = place_of(args.k_grid, block, item, args.heads);
      backward_keys(seat, map, k_tile, v_tile, summary, kShared ? own : summary + X::kKeySums,
                    [] {});
      fence_async();
      seat.sync();
      if (seat.leads()) {
        if (args.has_d_k) store_tile<X>(args.d_k, at, k_tile);
        if (args.has_d_v) store_tile<X>(args.d_v, at, v_tile);
        stores_commit();
      }
      __syncwarp();
    }
  }
  if (seat.leads()) stores_wait();
  __syncwarp();
  cluster_wait();  // what this thread block sent has arrived
}

}  // namespace mhla::cuda::sm90
