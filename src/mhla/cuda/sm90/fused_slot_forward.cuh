// The forward of one head in a cluster where every team has one block: its summary, and then the
// mixture, lies where its keys and values were, so that two thread blocks of wide heads share a
// multiprocessor. See docs/kernels/fused.md.
#pragma once

#include "mhla/cuda/sm90/fused_box_forward.cuh"

namespace mhla::cuda::sm90 {

// NOTE: there are as many query blocks as key blocks. A mixture then arrives only after the block's
// own summary has left, which comes after the read-out of the head before.
template <typename X, bool kShared>
__global__ void __launch_bounds__(X::kThreads, X::kPerProcessor)
    fused_slot_forward(const __grid_constant__ BoxArgs args) {
  static_assert(X::kInPlace);
  extern __shared__ __align__(1024) unsigned char shared[];
  using M = BoxMix<X>;
  const int clusters = static_cast<int>(gridDim.x) / X::C;
  const int first_item = static_cast<int>(blockIdx.x) / X::C;
  const Seat<X> seat(shared, false, args);
  clear_padding(seat, args, false);
  M::keep_weights(args, seat);
  __syncthreads();
  cluster_arrive();

  const bool has_block = seat.group < seat.own_blocks(args.q_grid, args);
  const int block = seat.rank * args.slots + seat.group;
  byte* const summary = seat.summary(seat.group);
  byte *const k_tile = seat.tiles, *const v_tile = k_tile + X::kTile;
  byte* const q_tile = v_tile + X::kTile;
  const std::uint32_t keys_here = seat.barrier(0), queries_here = seat.barrier(1);
  const auto load_keys = [&](int item) {
    if (!seat.leads() || !has_block || item >= args.items) return;
    const BoxPlace at = place_of(args.k_grid, block, item, args.heads);
    barrier_expect(keys_here, 2 * X::kTile);
    load_tile<X>(k_tile, args.k, at, keys_here);
    load_tile<X>(v_tile, args.v, at, keys_here);
  };
  // Their place is taken for most of the time, so they come into the L2 cache first.
  const auto ask_for_keys = [&](int item) {
    if (!seat.leads() || !has_block || item >= args.items) return;
    const BoxPlace at = place_of(args.k_grid, block, item, args.heads);
    ask_for_tile<X>(args.k, at);
    ask_for_tile<X>(args.v, at);
  };
  const auto load_queries = [&](int item) {
    if (!seat.leads() || !has_block || item >= args.items) return;
    barrier_expect(queries_here, X::kTile);
    load_tile<X>(q_tile, args.q, place_of(args.q_grid, block, item, args.heads), queries_here);
  };
  const PackedMap map(args.map);
  load_keys(first_item);
  load_queries(first_item);

  int turn = 0;
  for (int item = first_item; item < args.items; item += clusters, ++turn) {
    if (has_block) {
      barrier_wait(keys_here, turn % 2);
      summarize(seat, map, k_tile, v_tile, summary);
      fence_async();
      seat.sync();
    }
    cluster_wait();  // every thread block can be sent the summaries of this head
    if (has_block) {
      seat.distribute(seat.group, args, seat.slices, Arrival::summaries);
      if (turn > 0 && seat.leads()) {
        stores_wait();  // o of the head before has left the tile
        load_queries(item);
      }
      ask_for_keys(item + clusters);
      __syncwarp();
    }
    typename M::Weights weights;
    M::template take_weights<false>(weights, args, item, seat);
    seat.await(Arrival::summaries, turn, args);
    M::mix(weights, seat.slices, args, seat, args.q_grid.blocks, Arrival::mixed);
    seat.await(Arrival::mixed, turn, args);
    fence_async();
    cluster_arrive();

    if (has_block) {
      const BoxPlace at = place_of(args.q_grid, block, item, args.heads);
      barrier_wait(queries_here, turn % 2);
      read_out<X, kShared>(seat, args, map, q_tile, summary, at);
      fence_async();
      seat.sync();
      load_keys(item + clusters);
      if (seat.leads()) {
        store_tile<X>(args.o, at, q_tile);
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
