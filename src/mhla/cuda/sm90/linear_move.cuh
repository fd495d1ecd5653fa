// The warp that loads tiles and summaries with the copy engine, and the thread that stores them.
#pragma once

#include "mhla/cuda/sm90/linear_tile.cuh"

namespace mhla::cuda::sm90 {

// A block of a pair.
struct TilePlace {
  int x, y, z, head;    // its first token; z runs on over batch entries, heads go by tiles
  int extent[3];        // z, y, x
  std::int64_t number;  // of its summary; that of the next head is layout.blocks further
};
template <typename M>
__device__ __forceinline__ TilePlace place_of(const TileArgs& args, int task) {
  const TileLayout& layout = args.layout;
  // Heads vary fastest: their rows are neighbours in memory.
  const unsigned heads = args.heads, rest = static_cast<unsigned>(task) / heads,
                 head = static_cast<unsigned>(task) - rest * heads,
                 batch = rest / static_cast<unsigned>(layout.blocks),
                 block = rest - batch * static_cast<unsigned>(layout.blocks);
  const int line = static_cast<int>(block / static_cast<unsigned>(layout.counts[2]));
  const int plane = static_cast<int>(static_cast<unsigned>(line) /
                                     static_cast<unsigned>(layout.counts[1]));
  const int first[3] = {plane * layout.extent[0],
                        (line - plane * layout.counts[1]) * layout.extent[1],
                        (static_cast<int>(block) - line * layout.counts[2]) * layout.extent[2]};
  TilePlace place;
  place.x = first[2];
  place.y = first[1];
  place.z = first[0] + (args.batch_first + static_cast<int>(batch)) * layout.grid[0];
  place.head = args.head_first + static_cast<int>(head);
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    place.extent[axis] = min(layout.extent[axis], layout.grid[axis] - first[axis]);
  }
  place.number = static_cast<std::int64_t>(batch * heads + head) * M::kHeads * layout.blocks +
                 block;
  return place;
}

// A slice of a block: its place in the block, counted without divisions.
struct SliceTurn {
  int x = 0, y = 0, z = 0;
  __device__ __forceinline__ void advance(const TileLayout& layout) {
    x += layout.slice[2];
    if (x < layout.extent[2]) return;
    x = 0;
    y += layout.slice[1];
    if (y < layout.extent[1]) return;
    y = 0;
    z += layout.slice[0];
  }
};

// Rows of a tile that are slices of the block.
__device__ __forceinline__ int rows_of(const TileLayout& layout, int tile) {
  return min(layout.per_tile, layout.slices - tile * layout.per_tile) * layout.slice_rows;
}

// A pair of bf16 numbers: one where row 2 * lane or 2 * lane + 1 of a tile holds a token, else
// zero.
__device__ __forceinline__ std::uint32_t ones_of_tokens(const TileLayout& layout,
                                                        const TilePlace& place, int tile,
                                                        int lane) {
  const int rows = rows_of(layout, tile);
  bool is_token[2] = {2 * lane < rows, 2 * lane + 1 < rows};
  const bool whole = place.extent[0] == layout.extent[0] && place.extent[1] == layout.extent[1] &&
                     place.extent[2] == layout.extent[2];
  if (!whole) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 2 * lane + i, in_tile = row / layout.slice_rows,
                slice = tile * layout.per_tile + in_tile, at = row - in_tile * layout.slice_rows;
      const int line = slice / layout.across[2], slice_x = slice - line * layout.across[2],
                slice_z = line / layout.across[1], slice_y = line - slice_z * layout.across[1];
      const int in_line = at / layout.slice[2], x = at - in_line * layout.slice[2],
                z = in_line / layout.slice[1], y = in_line - z * layout.slice[1];
      is_token[i] = is_token[i] && slice_x * layout.slice[2] + x < place.extent[2] &&
                    slice_y * layout.slice[1] + y < place.extent[1] &&
                    slice_z * layout.slice[0] + z < place.extent[0];
    }
  }
  return (is_token[0] ? 0x3f80u : 0u) | (is_token[1] ? 0x3f800000u : 0u);
}

// The warp that loads. kSummary: also a summary for every block. kOnes: also notes in the scratch
// memory which rows are tokens, [stage][64].
template <typename M, bool kSummary, bool kOnes>
__device__ __forceinline__ void keep_loading(const TileArgs& args, const M& memory) {
  const TileLayout& layout = args.layout;
  const int lane = static_cast<int>(threadIdx.x % 32);
  Turn stage, slot;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TilePlace place = place_of<M>(args, task);
    if constexpr (kSummary) {
      barrier_wait(memory.slot_empty(slot.index), slot.parity ^ 1);
      if (lane == 0) {
        const int bytes = args.entries * 2;
        barrier_expect(memory.slot_full(slot.index), M::kHeads * bytes);
#pragma unroll
        for (int head = 0; head < M::kHeads; ++head) {
          load_bytes(memory.slot(slot.index) + head * M::kHeadSlot,
                     static_cast<const byte*>(args.summaries_in) +
                         (place.number + head * layout.blocks) * bytes,
                     bytes, memory.slot_full(slot.index));
        }
      }
      slot.advance(M::kSlots);
    }
    SliceTurn turn;
    int slice = 0;
#pragma unroll 1
    for (int t = 0; t < layout.tiles; ++t) {
      barrier_wait(memory.empty(stage.index), stage.parity ^ 1);
      if constexpr (kOnes) {
        store_word(memory.scratch() + stage.index * 128 + lane * 4,
                   ones_of_tokens(layout, place, t, lane));
        if (lane != 0) barrier_arrive(memory.full(stage.index));
      }
      __syncwarp();
      if (lane == 0) {
        const std::uint32_t full = memory.full(stage.index);
        barrier_expect(full, M::kTensors * M::kHalves * layout.per_tile * layout.slice_rows * 128);
#pragma unroll 1
        for (int i = 0; i < layout.per_tile; ++i, ++slice) {
          // Columns past the tensor: zeros where the block has no more slices.
          const int past = slice < layout.slices ? 0 : M::W;
#pragma unroll
          for (int tensor = 0; tensor < M::kTensors; ++tensor) {
#pragma unroll
            for (int half = 0; half < M::kHalves; ++half) {
              load_slice(memory.tile(stage.index, tensor) + half * M::kHalfTile +
                             i * layout.slice_rows * 128,
                         args.in[tensor],
                         {past + half * 64, place.x + turn.x, place.y + turn.y, place.z + turn.z,
                          place.head},
                         full);
            }
          }
          turn.advance(layout);
        }
      }
      stage.advance(M::kStages);
    }
  }
}

// The thread that stores. kOuts: tensors of a tile that have become results. kSummary: a slot
// becomes one for every block.
template <typename M, int kOuts, bool kSummary>
__device__ __forceinline__ void keep_storing(const TileArgs& args, const M& memory) {
  const TileLayout& layout = args.layout;
  Turn stage, slot;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TilePlace place = place_of<M>(args, task);
    SliceTurn turn;
    int slice = 0;
#pragma unroll 1
    for (int t = 0; kOuts > 0 && t < layout.tiles; ++t) {
      barrier_wait(memory.ready(stage.index), stage.parity);
      const int rows = layout.slice_rows;
#pragma unroll 1
      for (int i = 0; i < layout.per_tile && slice < layout.slices; ++i, ++slice) {
#pragma unroll
        for (int out = 0; out < kOuts; ++out) {
          if (!args.has_out[out]) continue;
#pragma unroll
          for (int half = 0; half < M::kHalves; ++half) {
            store_slice(
                args.out[out],
                {half * 64, place.x + turn.x, place.y + turn.y, place.z + turn.z, place.head},
                memory.tile(stage.index, out) + half * M::kHalfTile + i * rows * 128);
          }
        }
        turn.advance(layout);
      }
      stores_commit();
      stores_wait_read<0>();
      barrier_arrive(memory.empty(stage.index));
      stage.advance(M::kStages);
    }
    if constexpr (kSummary) {
      barrier_wait(memory.slot_ready(slot.index), slot.parity);
      const int bytes = args.entries * 2;
#pragma unroll
      for (int head = 0; head < M::kHeads; ++head) {
        store_bytes(
            static_cast<byte*>(args.summaries_out) + (place.number + head * layout.blocks) * bytes,
            memory.slot(slot.index) + head * M::kHeadSlot, bytes);
      }
      stores_commit();
      stores_wait_read<0>();
      barrier_arrive(memory.slot_empty(slot.index));
      slot.advance(M::kSlots);
    }
  }
  stores_wait_all();
}

}  // namespace mhla::cuda::sm90
