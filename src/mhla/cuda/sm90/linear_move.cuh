// The warps that load tiles and summaries with the copy engine, and the thread that stores them.
#pragma once

#include "mhla/cuda/sm90/linear_tile.cuh"

namespace mhla::cuda::sm90 {

// A block of a pair.
struct TilePlace {
  int x, y, z, head;    // its first token; z runs on over batch entries, heads go by tiles
  int extent[3];        // z, y, x
  int kind;             // its shape
  std::int64_t number;  // of its summary; that of the next head is layout.blocks further
};
// As if its pair were the first one.
__device__ __forceinline__ TilePlace block_at(const TileLayout& layout, unsigned block) {
  const unsigned line = layout.by_columns.divide(block);
  const unsigned plane = layout.by_lines.divide(line);
  const int index[3] = {static_cast<int>(plane),
                        static_cast<int>(line - plane * static_cast<unsigned>(layout.counts[1])),
                        static_cast<int>(block - line * static_cast<unsigned>(layout.counts[2]))};
  int first[3];
  TilePlace place;
  place.kind = 0;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const int i = index[axis], step = layout.step[axis], rest = layout.rest[axis];
    first[axis] = i * step;
    place.extent[axis] = min(step, layout.grid[axis] - first[axis]);
    if (rest != 0) {
      const int from = i * rest / layout.counts[axis], to = (i + 1) * rest / layout.counts[axis];
      first[axis] += from;
      place.extent[axis] = step + to - from;
      place.kind = to - from;
    }
  }
  place.x = first[2];
  place.y = first[1];
  place.z = first[0];
  place.head = 0;
  place.number = block;
  return place;
}
template <typename M>
__device__ __forceinline__ TilePlace place_of(const TileArgs& args, int task) {
  const TileLayout& layout = args.layout;
  // Heads vary fastest: their rows are neighbours in memory.
  const unsigned heads = args.heads, rest = args.by_heads.divide(static_cast<unsigned>(task)),
                 head = static_cast<unsigned>(task) - rest * heads,
                 batch = layout.by_blocks.divide(rest),
                 block = rest - batch * static_cast<unsigned>(layout.blocks);
  TilePlace place = block_at(layout, block);
  place.z += (args.batch_first + static_cast<int>(batch)) * layout.grid[0];
  place.head = args.head_first + static_cast<int>(head);
  place.number += static_cast<std::int64_t>(batch * heads + head) * M::kHeads * layout.blocks;
  return place;
}
// By value: constants of the launch, chosen by a predicate instead of an address.
__device__ __forceinline__ TileShape shape_at(const TileLayout& layout, int kind) {
  TileShape shape = layout.shapes[0];
  if (kind != 0) shape = layout.shapes[1];
  return shape;
}
template <typename M>
__device__ __forceinline__ TileShape shape_of(const TileArgs& args, int task) {
  return shape_at(args.layout, args.layout.kinds == 1 ? 0 : place_of<M>(args, task).kind);
}

// A slice of a block: its place in the block, counted without divisions.
struct SliceTurn {
  int x = 0, y = 0, z = 0;
  __device__ __forceinline__ void advance(const TileShape& shape) {
    x += shape.slice[2];
    if (x < shape.extent[2]) return;
    x = 0;
    y += shape.slice[1];
    if (y < shape.extent[1]) return;
    y = 0;
    z += shape.slice[0];
  }
};

// Rows of a tile that are slices of the block.
__device__ __forceinline__ int rows_of(const TileShape& shape, int tile) {
  return min(shape.per_tile, shape.slices - tile * shape.per_tile) * shape.slice_rows;
}
// The slot of a row of a tile.
__device__ __forceinline__ int slot_of(const TileLayout& layout, const TileShape& shape, int tile,
                                       int row) {
  const int at = tile * shape.per_tile * shape.slice_rows + row;
  if (layout.kinds == 1) return at;
  const int line = at / shape.extent[2], plane = line / shape.extent[1];
  return (plane * layout.box[1] + line - plane * shape.extent[1]) * layout.box[2] + at -
         line * shape.extent[2];
}
// Whether a slot holds a token of this block.
__device__ __forceinline__ bool is_token(const TileLayout& layout, const TilePlace& place,
                                         int slot) {
  const bool whole = place.extent[0] == layout.box[0] && place.extent[1] == layout.box[1] &&
                     place.extent[2] == layout.box[2];
  if (whole && slot < layout.box[0] * layout.box[1] * layout.box[2]) return true;
  const int line = slot / layout.box[2], plane = line / layout.box[1];
  return slot - line * layout.box[2] < place.extent[2] &&
         line - plane * layout.box[1] < place.extent[1] && plane < place.extent[0];
}

// A pair of bf16 numbers: one where row 2 * lane or 2 * lane + 1 of a tile holds a token, else
// zero.
__device__ __forceinline__ std::uint32_t ones_of_tokens(const TileLayout& layout,
                                                        const TilePlace& place, int tile,
                                                        int lane) {
  const TileShape shape = shape_at(layout, place.kind);
  const int rows = rows_of(shape, tile);
  const auto holds = [&](int row) {
    return row < rows &&
           (layout.whole || is_token(layout, place, slot_of(layout, shape, tile, row)));
  };
  return (holds(2 * lane) ? 0x3f80u : 0u) | (holds(2 * lane + 1) ? 0x3f800000u : 0u);
}

// Clears rows of a tile that the slices of another kind of block may have filled.
template <typename M>
__device__ __forceinline__ void clear_rows(std::uint32_t tiles, int first, int end, int lane) {
#pragma unroll 1
  for (int half = 0; half < M::kTensors * M::kHalves; ++half) {
    for (int i = first * 8 + lane; i < end * 8; i += 32) {
      store_zeros(tiles + half * M::kHalfTile + i * 16);
    }
  }
  fence_async();
  __syncwarp();
}

// Writes a vector of a block that a warpgroup has 64 entries of: those of its thread's two rows.
template <typename M>
__device__ __forceinline__ void put_vector(const TileArgs& args, int task, const Seat64& seat,
                                           float z0, float z1) {
  if (seat.lane % 4 != 0) return;
  const int column = seat.group * 64 + seat.warp * 16 + seat.lane / 4, head = column / M::D;
  const std::int64_t number = place_of<M>(args, task).number + head * args.layout.blocks;
  float* to = args.vectors_out + number * M::D + column % M::D;
  to[0] = z0;
  to[8] = z1;
  // The copy engine reads it in a later kernel, whose wait for this one names no proxy.
  fence_engine();
}

// The first kernel of a call lets the others start when it has waited itself. They may then read
// what the call was given before they wait: whatever made that has ended.
__device__ __forceinline__ void begin_call() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;\n");
}

// The thread that loads a summary for every block, if there is one, and a vector behind it, if
// there is one.
template <typename M>
__device__ __forceinline__ void keep_loading_summaries(const TileArgs& args, const M& memory) {
  const int bytes = args.summaries_in != nullptr ? args.entries * 2 : 0,
            vector = args.vectors != nullptr ? M::D * 4 : 0;
  Turn slot;
  fence_engine();
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const std::int64_t first = place_of<M>(args, task).number;
    const std::uint32_t full = memory.slot_full(slot.index);
    barrier_wait(memory.slot_empty(slot.index), slot.parity ^ 1);
    barrier_expect(full, M::kHeads * (bytes + vector));
#pragma unroll
    for (int head = 0; head < M::kHeads; ++head) {
      const std::uint32_t to = memory.slot(slot.index) + head * M::kHeadSlot;
      const std::int64_t number = first + head * args.layout.blocks;
      if (bytes != 0) {
        copy_linear(to, static_cast<const byte*>(args.summaries_in) + number * bytes, bytes, full);
      }
      if (vector != 0) {
        copy_linear(to + M::kSummary, args.vectors + number * M::D, vector, full);
      }
    }
    slot.advance(M::kSlots);
  }
}

// Where the only slice of a block lies. Planes of blocks run on over batch entries.
__device__ __forceinline__ SlicePlace only_slice(const TileArgs& args, int task) {
  const TileLayout& layout = args.layout;
  const unsigned block = args.by_heads.divide(static_cast<unsigned>(task));
  const unsigned line = layout.by_columns.divide(block);
  const unsigned plane = layout.by_lines.divide(line);
  return {
      .column = 0,
      .x = (static_cast<int>(block) - static_cast<int>(line) * layout.counts[2]) * layout.step[2],
      .y = (static_cast<int>(line) - static_cast<int>(plane) * layout.counts[1]) * layout.step[1],
      .z = static_cast<int>(plane) * layout.step[0] + args.batch_first * layout.grid[0],
      .head = args.head_first + task - static_cast<int>(block) * args.heads};
}
// What keep_loading and keep_storing come to where every block is one slice. NOTE: memory delivers
// such a block about once a microsecond, and one thread needs most of that for the some 230
// instructions that shapes, slices and rows without a token take; these loops have 55 to 70.
template <typename M>
__device__ __forceinline__ void keep_loading_slices(const TileArgs& args, const M& memory) {
  const int bytes = M::kTensors * M::kHalves * args.layout.shapes[0].slice_rows * 128;
  Turn stage;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    SlicePlace at = only_slice(args, task);
    const std::uint32_t full = memory.full(stage.index), to = memory.tile(stage.index, 0);
    barrier_wait(memory.empty(stage.index), stage.parity ^ 1);
    barrier_expect(full, bytes);
#pragma unroll
    for (int i = 0; i < M::kTensors * M::kHalves; ++i) {
      at.column = i % M::kHalves * 64;
      load_slice(to + i * M::kHalfTile, args.in[i / M::kHalves][0], at, full);
    }
    stage.advance(M::kStages);
  }
}
template <typename M, int kOuts>
__device__ __forceinline__ void keep_storing_slices(const TileArgs& args, const M& memory) {
  Turn stage;
  SlicePlace at = only_slice(args, blockIdx.x);
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks;) {
    const std::uint32_t from = memory.tile(stage.index, 0);
    barrier_wait(memory.ready(stage.index), stage.parity);
#pragma unroll
    for (int i = 0; i < kOuts * M::kHalves; ++i) {
      at.column = i % M::kHalves * 64;
      if (args.has_out[i / M::kHalves]) {
        store_slice(args.out[i / M::kHalves][0], at, from + i * M::kHalfTile);
      }
    }
    stores_commit();
    task += static_cast<int>(gridDim.x);
    at = only_slice(args, task);  // while the engine reads the tile
    store_wait_read();
    barrier_arrive(memory.empty(stage.index));
    stage.advance(M::kStages);
  }
  store_wait();
}

// The warp that loads tiles, which the call was given. kOnes: also notes in the scratch memory
// which rows are tokens, [stage][64], unless that is known.
template <typename M, bool kOnes>
__device__ __forceinline__ void keep_loading(const TileArgs& args, const M& memory) {
  const TileLayout& layout = args.layout;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (layout.one_slice) {
    if (lane == 0) keep_loading_slices(args, memory);
    return;
  }
  Turn stage;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TilePlace place = place_of<M>(args, task);
    const TileShape shape = shape_at(layout, place.kind);
    const int covered = shape.per_tile * shape.slice_rows, most = covered_rows(layout);
    SliceTurn turn;
    int slice = 0;
#pragma unroll 1
    for (int t = 0; t < shape.tiles; ++t) {
      barrier_wait(memory.empty(stage.index), stage.parity ^ 1);
      if (layout.kinds == 2) {
        if (covered < most) clear_rows<M>(memory.tile(stage.index, 0), covered, most, lane);
        if (!kOnes && lane != 0) barrier_arrive(memory.full(stage.index));
      }
      if constexpr (kOnes) {
        store_word(memory.scratch() + stage.index * 128 + lane * 4,
                   ones_of_tokens(layout, place, t, lane));
        if (lane != 0) barrier_arrive(memory.full(stage.index));
      }
      __syncwarp();
      if (lane == 0) {
        const std::uint32_t full = memory.full(stage.index);
        barrier_expect(full, M::kTensors * M::kHalves * covered * 128);
#pragma unroll 1
        for (int i = 0; i < shape.per_tile; ++i, ++slice) {
          // Columns past the tensor: zeros where the block has no more slices.
          const int past = slice < shape.slices ? 0 : M::W;
#pragma unroll
          for (int tensor = 0; tensor < M::kTensors; ++tensor) {
#pragma unroll
            for (int half = 0; half < M::kHalves; ++half) {
              load_slice(memory.tile(stage.index, tensor) + half * M::kHalfTile +
                             i * shape.slice_rows * 128,
                         args.in[tensor][place.kind],
                         {past + half * 64, place.x + turn.x, place.y + turn.y, place.z + turn.z,
                          place.head},
                         full);
            }
          }
          turn.advance(shape);
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
  if constexpr (!kSummary) {
    if (layout.one_slice) return keep_storing_slices<M, kOuts>(args, memory);
  }
  Turn stage, slot;
#pragma unroll 1
  for (int task = blockIdx.x; task < args.tasks; task += static_cast<int>(gridDim.x)) {
    const TilePlace place = place_of<M>(args, task);
    const TileShape shape = shape_at(layout, place.kind);
    SliceTurn turn;
    int slice = 0;
#pragma unroll 1
    for (int t = 0; kOuts > 0 && t < shape.tiles; ++t) {
      barrier_wait(memory.ready(stage.index), stage.parity);
      const int rows = shape.slice_rows;
#pragma unroll 1
      for (int i = 0; i < shape.per_tile && slice < shape.slices; ++i, ++slice) {
#pragma unroll
        for (int out = 0; out < kOuts; ++out) {
          if (!args.has_out[out]) continue;
#pragma unroll
          for (int half = 0; half < M::kHalves; ++half) {
            store_slice(
                args.out[out][place.kind],
                {half * 64, place.x + turn.x, place.y + turn.y, place.z + turn.z, place.head},
                memory.tile(stage.index, out) + half * M::kHalfTile + i * rows * 128);
          }
        }
        turn.advance(shape);
      }
      stores_commit();
      store_wait_read();
      barrier_arrive(memory.empty(stage.index));
      stage.advance(M::kStages);
    }
    if constexpr (kSummary) {
      barrier_wait(memory.slot_ready(slot.index), slot.parity);
      const int bytes = args.entries * 2;
#pragma unroll
      for (int head = 0; head < M::kHeads; ++head) {
        store_linear(
            static_cast<byte*>(args.summaries_out) + (place.number + head * layout.blocks) * bytes,
            memory.slot(slot.index) + head * M::kHeadSlot, bytes);
      }
      stores_commit();
      store_wait_read();
      barrier_arrive(memory.slot_empty(slot.index));
      slot.advance(M::kSlots);
    }
  }
  store_wait();
}

}  // namespace mhla::cuda::sm90
