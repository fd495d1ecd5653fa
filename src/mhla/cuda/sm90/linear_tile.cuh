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

__device__ __forceinline__ void store_zeros(std::uint32_t at) {  // 16 bytes
  asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(at), "r"(0) : "memory");
}
// Rows of a tile that the copy engine writes for some kind of block.
__device__ __forceinline__ int covered_rows(const TileLayout& layout) {
  const TileShape &first = layout.shapes[0], &last = layout.shapes[layout.kinds - 1];
  return max(first.per_tile * first.slice_rows, last.per_tile * last.slice_rows);
}

// Shared memory of a kernel: kStages tiles of each of kTensors tensors, kSlots summaries, kScratch
// bytes, barriers. kGroups warpgroups compute; of the warps after them one loads tiles, one
// summaries, and one stores. These have a warpgroup of their own where they give registers to the
// others. A tile of W columns is one head, or two that are neighbours in memory.
template <int W_, int kHeads_, int kGroups_, int kTensors_, int kStages_, int kSlots_,
          int kScratch_, int kMovers = 64>
struct TileMemory {
  static constexpr int W = W_, kHeads = kHeads_, D = W / kHeads;
  static constexpr int kGroups = kGroups_, kTensors = kTensors_, kStages = kStages_,
                       kSlots = kSlots_;
  static_assert(kHeads == 1 || (W == 64 && kHeads == 2));
  static constexpr int kThreads = kGroups * 128 + kMovers;
  // Of a warpgroup at a barrier, and of all that compute.
  static constexpr int kGroupArrivals = 4 * kWarpArrivals, kArrivals = kGroups * kGroupArrivals;
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
    const int covered = covered_rows(args.layout);
#pragma unroll 1
    for (int half = 0; half < kTiles / kHalfTile && covered < 64; ++half) {
      const std::uint32_t rest = base + half * kHalfTile + covered * 128;
      for (int i = static_cast<int>(threadIdx.x); i < (64 - covered) * 8; i += kThreads) {
        store_zeros(rest + i * 16);
      }
    }
    if (threadIdx.x == 32) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i < kTensors) prefetch_map(args.in[i][0]);
        if (args.has_out[i]) prefetch_map(args.out[i][0]);
      }
    }
    fence_async();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        // Where the loading warp clears rows, all of its lanes arrive.
        barrier_init(full(i), args.layout.kinds == 2 ? 32 : arrivals.full);
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
// Entries 8 * j + 2 * (lane % 4) and the next of the vector behind a summary: kGiven, f32 numbers
// that lie apart from the summaries in memory.
template <typename M, bool kGiven>
__device__ __forceinline__ std::uint32_t key_pair(std::uint32_t slot, int head, int j) {
  if constexpr (kGiven) {
    const std::uint32_t at = slot + head * M::kHeadSlot + M::kSummary + j * 32 +
                             threadIdx.x % 4 * 8;
    return ptx::pack_bf16(load_float(at), load_float(at + 4));
  } else {
    return load_word(M::key_sum(slot, head) + j * 16);
  }
}
// What this warp wrote may be read by the copy engine, or its reading is over.
__device__ __forceinline__ void arrive_written(std::uint32_t barrier) {
  fence_async();
  __syncwarp();
  warp_arrive(barrier);
}
__device__ __forceinline__ void arrive_read(std::uint32_t barrier) {
  __syncwarp();
  warp_arrive(barrier);
}

// The row factor of the normaliser (Eq. 4): scale over the denominator.
__device__ __forceinline__ float row_factor(const TileArgs& args, float den) {
  const float total = args.scale * den + args.eps;
  return total == 0.f ? 0.f : args.scale / total;
}

}  // namespace mhla::cuda::sm90
