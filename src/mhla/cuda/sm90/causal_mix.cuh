// Mixing in the causal backward: S~ = m S and dS = m^T dS~ in the place of S and dS~, and the
// gradient of m. A warp works alone on 64 entries of all blocks, as in sm80/mixing_pair.cuh; the
// copy engine brings and fetches them, so that nothing else goes through the warp's loads and
// stores to memory.
#pragma once

#include "mhla/cuda/sm80/mixing_pair.cuh"
#include "mhla/cuda/sm90/causal_backward.h"
#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

// Entries of a warp's tile as boxes of 64 entries and 32 blocks. Nothing makes S of the last block
// or dS~ of the first, and nothing reads S~ of the first or dS of the last: the maps leave them
// out, so that the engine brings zeros for them and stores neither.
struct MixTile {
  BoxStart all, later;  // from block 0; the same of a map that begins with block 1

  __device__ __forceinline__ MixTile(const PairMixArgs& args, int tile) {
    const int tiles = args.entries / PairMix::kEntries, pair = tile / tiles;
    all = {(tile - pair * tiles) * PairMix::kEntries, 0, 0, pair % args.slots};
    later = all;
    later.token = -1;
  }
};

// `order` says when the summaries of a pair are there, and is told of every tile that was mixed: by
// one thread.
template <typename Order>
__device__ __forceinline__ void mix_tiles(const PairMixArgs& args, const PairMixMaps& maps,
                                          unsigned char* stages, std::uint32_t barriers,
                                          CausalShare share, float (&sum)[2][4][4],
                                          const Order& order) {
  using P = PairMix;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tiles_of_pair = args.entries / P::kEntries, tiles = args.pairs * tiles_of_pair;
  const std::uint32_t base = ptx::shared_address(stages);
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < P::kStages; ++s) barrier_init(barriers + 8 * s, 1);
    fence_barrier_init();
  }
  __syncwarp();
  const auto start = [&](int tile, int stage) {
    if (tile >= tiles) return;
    order.await(tile / tiles_of_pair);
    const MixTile at(args, tile);
    const std::uint32_t to = base + stage * P::kStage, landed = barriers + 8 * stage;
    arrive_and_expect(landed, P::kStage);
    copy_box(to, maps.summaries, at.all, landed);
    copy_box(to + P::kTile, maps.gradients, at.later, landed);
  };
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < P::kStages; ++s) start(share.first + s * share.step, s);
  }
  PairWeights forward, back;
  forward.load<false>(args.weights, args.weights_ld);
  back.load<true>(args.weights, args.weights_ld);
  const auto store_to = [&](std::uint32_t tile) {
    return [=](int i, int s, const float (&c)[2][4]) {
      store_groups(tile + P::place(i * 16 + lane % 16, 2 * s + lane / 16), c[0]);
    };
  };

  CausalRing<P::kStages> ring, last;  // the stage of a tile, and of the one before it
  int before = -1;
  for (int tile = share.first; tile < tiles; tile += share.step) {
    unsigned char* s = stages + ring.stage * P::kStage;
    const std::uint32_t at = base + ring.stage * P::kStage;
    barrier_wait(barriers + 8 * ring.stage, ring.parity);
    const PairFactors factors(s), d_factors(s + P::kTile);
    add_gradient(sum, s + P::kTile, s);
    __syncwarp();  // all lanes have loaded theirs
    factors.mix<false>(forward, store_to(at));
    d_factors.mix<true>(back, store_to(at + P::kTile));
    fence_async();
    __syncwarp();
    if (lane == 0) {
      const MixTile place(args, tile);
      store_box(maps.mixed, place.later, at);
      store_box(maps.mixed_gradients, place.all, at + P::kTile);
      store_commit();
      if (before >= 0) {  // which has had the time of this one to get there
        store_wait<1>();
        order.done(before / tiles_of_pair);
        start(before + P::kStages * share.step, last.stage);
      }
    }
    before = tile;
    last = ring;
    ring.next();
  }
  if (lane == 0 && before >= 0) {
    store_wait();
    order.done(before / tiles_of_pair);
  }
}

}  // namespace mhla::cuda::sm90
