// What the Hopper kernels of the linear form share: rings of tiles and of summaries in shared
// memory, a warp that loads them and one that stores them with the copy engine, and the fragments
// that warpgroups read from them.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/bulk_copy.cuh"
#include "mhla/cuda/sm90/fused_box_tile.cuh"
#include "mhla/cuda/sm90/fused_ptx.cuh"
#include "mhla/cuda/sm90/linear_tiles.h"
#include "mhla/cuda/sm90/store_matrix.cuh"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

// Where in [z][y][x][column] of a head a slice starts.
struct SlicePlace {
  int column, x, y, z, head;
};

__device__ __forceinline__ void load_slice(std::uint32_t to, const TensorMap& map,
                                           const SlicePlace& at, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];\n" ::"r"(to),
      "l"(&map), "r"(at.column), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.head), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_slice(const TensorMap& map, const SlicePlace& at,
                                            std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], "
      "[%6];\n" ::"l"(&map),
      "r"(at.column), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.head), "r"(from)
      : "memory");
}
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, int bytes,
                                           std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// Until the stores of this thread, less the last kPending groups, have been read from shared
// memory; until all are done.
template <int kPending>
__device__ __forceinline__ void stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void stores_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

// Counts around a ring.
struct Turn {
  int index = 0, parity = 0;
  __device__ __forceinline__ void advance(int size) {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

// Operands in halves of 64 columns. Inner dimension = columns 16 * step and on, of rows from `half`
// on:
template <int kHalfBytes>
__device__ __forceinline__ Operand inner_columns(std::uint32_t rows, int step) {
  return {(rows >> 4) + static_cast<std::uint32_t>(step / 4 * (kHalfBytes >> 4) + step % 4 * 2),
          (8u * 128 >> 4) | 1u << 30};
}
// Inner dimension = rows 16 * step and on, outer = all columns.
template <int kHalfBytes>
__device__ __forceinline__ Operand inner_rows(std::uint32_t rows, int step) {
  return {(rows >> 4) + static_cast<std::uint32_t>(step * (16 * 128 >> 4)) +
              (static_cast<std::uint32_t>(kHalfBytes >> 4) << 16),
          (8u * 128 >> 4) | 1u << 30};
}

// Shared memory of a kernel: kStages tiles of each of kTensors tensors, kSlots summaries, kScratch
// bytes, barriers. kGroups warpgroups compute, then a warp loads and another stores; these two have
// a warpgroup of their own where they give registers to the others. A tile of W columns is one
// head, or two that are neighbours in memory.
template <int W_, int kHeads_, int kGroups_, int kTensors_, int kStages_, int kSlots_,
          int kScratch_, int kMovers = 64>
struct TileMemory {
  static constexpr int W = W_, kHeads = kHeads_, D = W / kHeads;
  static constexpr int kGroups = kGroups_, kTensors = kTensors_, kStages = kStages_,
                       kSlots = kSlots_;
  static_assert(kHeads == 1 || (W == 64 && kHeads == 2));
  static constexpr int kThreads = kGroups * 128 + kMovers;
  // Columns lie in halves of 64, rows of 128 bytes each, swizzled by the copy engine: chunk c of
  // row r is at c ^ r % 8.
  static constexpr int kHalves = W / 64, kHalfTile = 64 * 128, kTile = kHalves * kHalfTile;
  // Summaries of one head a tile lie the same way; those of two have rows of 64 bytes, chunk c of
  // row r at c ^ r / 2 % 4.
  static constexpr int kHalfSummary = D * 128, kSummary = D * D * 2;
  static constexpr int kHeadSlot = kHeads == 1 ? kSummary + 1024 : kSummary + 512;
  static constexpr int kSlot = kHeads * kHeadSlot;
  static constexpr int kTiles = kStages * kTensors * kTile;
  static constexpr int kBarriers = 3 * (kStages + kSlots);
  static constexpr int kUsed = kTiles + kSlots * kSlot + kScratch_ + kBarriers * 8;
  static constexpr int kBytes = kUsed + 1024;  // the swizzle repeats after 1024 bytes
  static_assert(kSlot % 1024 == 0 && kBytes <= 227 * 1024);

  std::uint32_t base;

  __device__ __forceinline__ explicit TileMemory(const byte* shared)
      : base((ptx::shared_address(shared) + 1023u) & ~1023u) {}
  __device__ __forceinline__ std::uint32_t tile(int stage, int tensor) const {
    return base + (stage * kTensors + tensor) * kTile;
  }
  __device__ __forceinline__ std::uint32_t slot(int i) const { return base + kTiles + i * kSlot; }
  __device__ __forceinline__ std::uint32_t scratch() const {
    return base + kTiles + kSlots * kSlot;
  }
  // Of a slot: the summary of a head with its rows, 16 * step and on, or its columns as inner
  // dimension; from row `first` on. The key sum's words of this thread.
  static __device__ __forceinline__ Operand summary_rows(std::uint32_t slot, int head, int step) {
    if constexpr (kHeads == 1) return inner_rows<kHalfSummary>(slot, step);
    else return SwizzledTile<32>::tokens_inner(slot + head * kHeadSlot, step);
  }
  static __device__ __forceinline__ Operand summary_columns(std::uint32_t slot, int head, int step,
                                                            int first = 0) {
    if constexpr (kHeads == 1) return inner_columns<kHalfSummary>(slot + first * 128, step);
    else return SwizzledTile<32>::columns_inner(slot + head * kHeadSlot, step);
  }
  static __device__ __forceinline__ std::uint32_t key_sum(std::uint32_t slot, int head) {
    return slot + head * kHeadSlot + kSummary + threadIdx.x % 4 * 4;
  }
  // full: loaded. ready: results are to be stored. empty: may be loaded (or, where nothing is
  // loaded, written) again.
  __device__ __forceinline__ std::uint32_t full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ std::uint32_t ready(int stage) const {
    return barrier(kStages + stage);
  }
  __device__ __forceinline__ std::uint32_t empty(int stage) const {
    return barrier(2 * kStages + stage);
  }
  __device__ __forceinline__ std::uint32_t slot_full(int i) const {
    return barrier(3 * kStages + i);
  }
  __device__ __forceinline__ std::uint32_t slot_ready(int i) const {
    return barrier(3 * kStages + kSlots + i);
  }
  __device__ __forceinline__ std::uint32_t slot_empty(int i) const {
    return barrier(3 * kStages + 2 * kSlots + i);
  }

  // Clears the rows that no slice covers, because the engine never writes them, and sets up the
  // barriers.
  struct Arrivals {
    int full = 1, ready = 1, empty = 1, slot_ready = 1, slot_empty = 1;
  };
  __device__ __forceinline__ void start(const TileArgs& args, const Arrivals& arrivals) const {
    const int covered = args.layout.per_tile * args.layout.slice_rows;
#pragma unroll 1
    for (int half = 0; half < kTiles / kHalfTile && covered < 64; ++half) {
      const std::uint32_t rest = base + half * kHalfTile + covered * 128;
      for (int i = static_cast<int>(threadIdx.x); i < (64 - covered) * 8; i += kThreads) {
        asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(rest + i * 16), "r"(0)
                     : "memory");
      }
    }
    if (threadIdx.x == 32) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i < kTensors) prefetch_map(args.in[i]);
        if (args.has_out[i]) prefetch_map(args.out[i]);
      }
    }
    fence_async();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        barrier_init(full(i), arrivals.full);
        barrier_init(ready(i), arrivals.ready);
        barrier_init(empty(i), arrivals.empty);
      }
      for (int i = 0; i < kSlots; ++i) {
        barrier_init(slot_full(i), 1);
        barrier_init(slot_ready(i), arrivals.slot_ready);
        barrier_init(slot_empty(i), arrivals.slot_empty);
      }
      fence_barriers();
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const {
    return scratch() + kScratch_ + i * 8;
  }
};

__device__ __forceinline__ std::uint32_t load_word(std::uint32_t at) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(word) : "r"(at) : "memory");
  return word;
}
__device__ __forceinline__ float load_float(std::uint32_t at) {
  return __uint_as_float(load_word(at));
}
__device__ __forceinline__ void store_word(std::uint32_t at, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at), "r"(word) : "memory");
}
__device__ __forceinline__ void store_float(std::uint32_t at, float x) {
  store_word(at, __float_as_uint(x));
}
__device__ __forceinline__ void store_half(std::uint32_t at, bf16 x) {
  asm volatile("st.shared.b16 [%0], %1;\n" ::"r"(at), "h"(x.bits) : "memory");
}
template <bool kTransposed>
__device__ __forceinline__ void load_fragment(std::uint32_t (&r)[4], std::uint32_t at) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  }
}
template <bool kTransposed = false>
__device__ __forceinline__ void store_fragment(std::uint32_t at, std::uint32_t r0, std::uint32_t r1,
                                               std::uint32_t r2, std::uint32_t r3) {
  if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
  }
}

// A thread of a warpgroup, and where its fragments lie.
struct Seat64 {
  int lane, warp, group;  // warp: of four; group: warpgroup
  std::uint32_t row;      // of 16 columns: row and swizzled chunk
  std::uint32_t column;   // of 16 tokens, transposed: the warp's 16 of 64 columns

  __device__ __forceinline__ Seat64()
      : lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(threadIdx.x / 32 % 4)),
        group(static_cast<int>(threadIdx.x / 128)),
        row((warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4)),
        column((lane % 8 + lane / 16 * 8) * 128 + (((warp * 2 + lane / 8 % 2) ^ lane % 8) << 4)) {}
  __device__ __forceinline__ void sync() const { ptx::sync_warps(1 + group, 128); }
  // Rows of this warp, columns 16 * step of a half and on, in accumulator order.
  __device__ __forceinline__ std::uint32_t row_at(std::uint32_t half, int step) const {
    return half + (row ^ static_cast<std::uint32_t>(step << 5));
  }
  // All 64 rows, step by step of 16.
  __device__ __forceinline__ std::uint32_t column_at(std::uint32_t half, int step) const {
    return half + column + step * 16 * 128;
  }
};

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

// Bit of two rows of a tile, 2 * lane and 2 * lane + 1, that hold a token, as a pair of bf16 ones.
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

// Writes a warpgroup's 64 rows of a product of columns, from 64 * group on, and its share of the
// key sum. With two heads a tile, products of one's keys with the other's values are dropped.
template <typename M>
__device__ __forceinline__ void put_summary(std::uint32_t slot, const Seat64& seat,
                                            const float (&sum)[M::W / 2], float z0, float z1,
                                            bool with_z) {
  const auto put = [](std::uint32_t at, const float* s) {
    store_fragment(at, ptx::pack_bf16(s[0], s[1]), ptx::pack_bf16(s[2], s[3]),
                   ptx::pack_bf16(s[4], s[5]), ptx::pack_bf16(s[6], s[7]));
  };
  int z = M::kSummary + (seat.group * 64 + seat.warp * 16 + seat.lane / 4) * 2;
  if constexpr (M::kHeads == 1) {
#pragma unroll
    for (int j = 0; j < M::D / 8; j += 2) {
      put(seat.row_at(slot + j / 8 * M::kHalfSummary + seat.group * M::kHalfTile, j % 8 / 2),
          sum + 4 * j);
    }
  } else {
    const int head = seat.warp / 2, row = seat.warp % 2 * 16 + seat.lane % 16;
    float own[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) own[i] = head == 0 ? sum[i] : sum[16 + i];
    slot += head * M::kHeadSlot;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      put(slot + SwizzledTile<32>::chunk(row, 2 * s + seat.lane / 16), own + 8 * s);
    }
    z -= head * M::D * 2;
  }
  if (with_z && seat.lane % 4 == 0) {
    store_half(slot + z, from_float<bf16>(z0));
    store_half(slot + z + 16, from_float<bf16>(z1));
  }
}
// What this warp wrote may be read by the copy engine, or its reading is over.
__device__ __forceinline__ void arrive_written(std::uint32_t barrier) {
  fence_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
__device__ __forceinline__ void arrive_read(std::uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// The row factor of the normaliser (Eq. 4): scale over the denominator.
__device__ __forceinline__ float row_factor(const TileArgs& args, float den) {
  const float total = args.scale * den + args.eps;
  return total == 0.f ? 0.f : args.scale / total;
}

}  // namespace mhla::cuda::sm90
