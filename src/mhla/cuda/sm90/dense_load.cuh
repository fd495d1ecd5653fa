// The loading warpgroup: two warps copy tiles into shared memory as soon as a buffer is free
// (cp.async, never waiting for the data), two more apply the feature map to what has landed, write
// the tables that depend on blocks only, and hand the tile over to the products.
#pragma once

#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/dense_args.h"
#include "mhla/cuda/sm90/feature_pair.cuh"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kLoadThreads = 64;  // that copy, and as many that map

// Where things lie in shared memory, as 32-bit shared addresses. A buffer has three barriers:
// landed (copied), full (ready for the products), empty (products done).
template <int D, bool kRowZ, int kWarpgroups>
struct Shared {
  static constexpr int kRowBytes = kTile * D * 2 * (kRowZ ? 2 : 1);  // x, then z
  const DenseArgs& args;
  std::uint32_t base;
  int slots, buffers;

  __device__ Shared(const DenseArgs& args, std::uint32_t base)
      : args(args), base(base), slots(args.slots), buffers(args.row_buffers) {}

  __device__ std::uint32_t column_barriers(int slot) const { return base + 24 * slot; }
  __device__ std::uint32_t row_barriers(int group, int buffer) const {
    return base + 24 * (kMaxSlots + group * kMaxRowBuffers + buffer);
  }
  __device__ std::uint32_t column_full(int slot) const { return column_barriers(slot) + kFull; }
  __device__ std::uint32_t column_empty(int slot) const { return column_barriers(slot) + kEmpty; }
  __device__ std::uint32_t row_full(int group, int buffer) const {
    return row_barriers(group, buffer) + kFull;
  }
  __device__ std::uint32_t row_empty(int group, int buffer) const {
    return row_barriers(group, buffer) + kEmpty;
  }
  __device__ std::uint32_t row_tile(int group, int buffer) const {
    return base + kBarrierBytes + (group * buffers + buffer) * kRowBytes;
  }
  __device__ std::uint32_t table(int i) const {
    return base + kBarrierBytes + kWarpgroups * buffers * kRowBytes + i * args.table_bytes;
  }
  __device__ std::uint32_t slot(int i) const { return table(args.tables) + i * args.slot_bytes; }
  // The table of a column tile (counted in its sequence) that lies in a slot.
  __device__ std::uint32_t table(int tile, int slot) const {
    return table(args.tables_stay ? tile : slot);
  }

  static constexpr int kLanded = 0, kFull = 8, kEmpty = 16;
};

// Position in a ring of buffers; `parity` is that of the barrier phase a reader waits for.
struct Ring {
  int index = 0, parity = 0;
  __device__ void advance(int size) {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

// The rings of several warpgroups, one or two buffers each, packed into a word: registers cannot be
// indexed.
class Rings {
 public:
  __device__ Ring get(int g, int size) const {
    const int count = (packed_ >> (2 * g)) & 3;
    Ring ring;
    ring.index = size == 2 ? count & 1 : 0;
    ring.parity = size == 2 ? count >> 1 : count & 1;
    return ring;
  }
  __device__ void advance(int g) {
    const int count = (packed_ >> (2 * g)) & 3;
    packed_ = (packed_ & ~(3 << (2 * g))) | ((count + 1) & 3) << (2 * g);
  }

 private:
  int packed_ = 0;
};

// Row tiles go round the warpgroups, across items too when kRotate. A kernel that adds to memory
// tile by tile starts each item with the first warpgroup, so that a tile always meets the same
// threads.
template <int kWarpgroups, bool kRotate>
struct Turns {
  int first = 0;  // warpgroup of the item's first tile
  __device__ int of(int tile) const { return (first + tile) % kWarpgroups; }
  __device__ int tile_of(int warpgroup) const {
    return warpgroup >= first ? warpgroup - first : warpgroup - first + kWarpgroups;
  }
  __device__ void next_item(int tiles) {
    if constexpr (kRotate) first = (first + tiles) % kWarpgroups;
  }
};

__device__ __forceinline__ int row_tiles(const DenseGroup& group) {
  return (group.rows + kTile - 1) / kTile;
}

__device__ __forceinline__ void store_chunk(std::uint32_t to, const std::uint32_t (&w)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}

__device__ __forceinline__ void store_float(std::uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ float load_float(std::uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(from) : "memory");
  return x;
}

// Writes what belongs to one column of a tile: its weights with every row block (0 where the mask
// hides the pair), its rank, and a one (tf32) at its block, so that products with these sum over
// blocks. kSums: rows are keys. weight(i) is m of row block i and this column's block.
template <bool kSums, int kMixingBlocks, typename Weight>
__device__ __forceinline__ void write_table(const DenseArgs& args, std::uint32_t table, int column,
                                            int block, int order, bool valid, Weight weight) {
  const TablePlan plan = table_plan(args.row_blocks, kSums, kMixingBlocks);
  // Queries see key blocks up to their own.
  const int low = kSums || args.seen == Seen::all ? 0 : block;
  const int high = kSums && args.seen != Seen::all ? block : args.row_blocks - 1;
  const int place = column % 8 / 2 * kQuadStride + column / 8 * 2 + column % 2;
  constexpr int kBatch = 4;  // loads in flight
  for (int i = 0; i < args.row_blocks; i += kBatch) {
    float m[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) m[j] = weight(min(i + j, args.row_blocks - 1));
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int row = i + j;
      if (row >= args.row_blocks) break;
      store_float(table + 4 * (row * kWeightStride + place),
                  valid && row >= low && row <= high ? m[j] : 0.f);
    }
  }
  store_float(table + plan.order + 4 * column, __int_as_float(order));
  if constexpr (kSums) {
    // [group of 8 columns][8 blocks][odd column][block % 8][column / 2]
    const std::uint32_t at = table + plan.one_hot + column / 8 * (kMixingBlocks / 8) * 2 * kCore +
                             column % 2 * kCore + column % 8 / 2 * 4;
#pragma unroll
    for (int n = 0; n < kMixingBlocks; ++n) {
      store_float(at + n / 8 * 2 * kCore + n % 8 * 16, valid && n == block ? 1.f : 0.f);
    }
  }
}

// kSums: the transposed kernel, whose slots also hold row factors and the one-hot blocks.
template <typename T, int D, int kWarpgroups, bool kRowZ, bool kOnes, bool kSums, int kMixingBlocks>
class Loader {
 public:
  __device__ Loader(const DenseArgs& args, std::uint32_t base)
      : args_(args), shared_(args, base), thread_(threadIdx.x % kLoadThreads) {}

  // sweeps: how often a pass walks the columns.
  __device__ void run(int sweeps) {
    if (threadIdx.x / kLoadThreads % 2 == 0) {
      walk<true>(sweeps);
    } else {
      if constexpr (kOnes) write_ones();
      walk<false>(sweeps);
    }
  }

 private:
  static constexpr int kChunks = D / 8;
  static constexpr int kUnits = kTile * kChunks;  // 16-byte chunks of a tile
  static constexpr SlotPlan kPlan = slot_plan(D, kOnes, kSums);

  // The order in which the products need tiles: a row tile for each warpgroup, the columns, and the
  // rest of the rows.
  template <bool kCopy>
  __device__ void walk(int sweeps) {
    DenseGroup group = args_.groups[0];
    Turns<kWarpgroups, !kSums> turns;
    for (int item = blockIdx.x; item < args_.items; item += gridDim.x) {
      const int pair = item / args_.groups_count;
      if (args_.groups_count > 1) group = args_.groups[item - pair * args_.groups_count];
      batch_ = pair / args_.heads;
      head_ = pair - batch_ * args_.heads;
      const int tiles = row_tiles(group);
      for (int tile = 0; tile < tiles; ++tile) {
        rows<kCopy>(turns.of(tile), group.row_first + tile * kTile, group.rows - tile * kTile);
        if (tile + 1 != min(kWarpgroups, tiles)) continue;
        for (int sweep = 0; sweep < (args_.resident ? 1 : sweeps); ++sweep) {
          for (int c = 0; c < group.columns; c += kTile) {
            columns<kCopy>(group.column_first + c, group.columns - c);
          }
        }
      }
      turns.next_item(tiles);
    }
  }

  template <bool kCopy>
  __device__ void rows(int g, int first, int count) {
    const Ring ring = row_rings_.get(g, shared_.buffers);
    const std::uint32_t barriers = shared_.row_barriers(g, ring.index);
    const std::uint32_t tile = shared_.row_tile(g, ring.index);
    if constexpr (kCopy) {
      copy_rows(barriers, ring, tile, first, count);
    } else {
      barrier_wait(barriers + shared_.kLanded, ring.parity);
      hand_over(barriers, tile);
    }
    row_rings_.advance(g);
  }

  template <bool kCopy>
  __device__ void columns(int first, int count) {
    const std::uint32_t barriers = shared_.column_barriers(column_ring_.index);
    const std::uint32_t slot = shared_.slot(column_ring_.index);
    if constexpr (kCopy) {
      copy_columns(barriers, slot, first, count);
    } else {
      barrier_wait(barriers + shared_.kLanded, column_ring_.parity);
      if (!args_.tables_stay) write_moving_table(shared_.table(column_ring_.index), first, count);
      hand_over(barriers, slot);
    }
    column_ring_.advance(shared_.slots);
  }

  __device__ void copy_rows(std::uint32_t barriers, const Ring& ring, std::uint32_t tile, int first,
                            int count) const {
    barrier_wait(barriers + shared_.kEmpty, ring.parity ^ 1);
    copy_tile<kChunks>(tile, args_.row_x, first, count, args_.dk);
    if constexpr (kRowZ)
      copy_tile<kChunks>(tile + kTile * D * 2, args_.row_z, first, count, args_.dv);
    land(barriers, args_.row_x.vectors && (!kRowZ || args_.row_z.vectors));
  }

  __device__ void copy_columns(std::uint32_t barriers, std::uint32_t slot, int first,
                               int count) const {
    barrier_wait(barriers + shared_.kEmpty, column_ring_.parity ^ 1);
    copy_tile<kChunks>(slot, args_.column_x, first, count, args_.dk);
    copy_tile<kChunks + (kOnes ? 1 : 0)>(slot + kPlan.z, args_.column_z, first, count, args_.dv);
    if constexpr (kSums) {
      const bool valid = thread_ < count;
      const std::int64_t pair = static_cast<std::int64_t>(batch_) * args_.heads + head_;
      copy_async_8(slot + kPlan.factors + 8 * thread_,
                   args_.factors + pair * args_.factor_stride + first + (valid ? thread_ : 0),
                   valid);
    }
    land(barriers, args_.column_x.vectors && args_.column_z.vectors);
  }

  __device__ void land(std::uint32_t barriers, bool all_async) const {
    if (all_async) {
      arrive_when_copied(barriers + shared_.kLanded);
    } else {
      ptx::copy_commit();
      ptx::copy_wait<0>();
      barrier_arrive(barriers + shared_.kLanded);
    }
  }

  // 64 rows of a [B, N, H, width] tensor; zeros past `count` tokens and `width` columns.
  template <int kTileChunks>
  __device__ void copy_tile(std::uint32_t tile, const RowTensor& tensor, int first, int count,
                            int width) const {
    const T* rows = tensor.head<T>(batch_, head_) + first * tensor.token_stride;
    if (tensor.vectors && count >= kTile && width == D) {
      copy_part < kTileChunks, 0, kChunks<8 ? kChunks : 8>(tile, rows, tensor.token_stride);
      if constexpr (kChunks > 8)
        copy_part<kTileChunks, 8, kChunks - 8>(tile, rows, tensor.token_stride);
      return;
    }
    for (int unit = thread_; unit < kUnits; unit += kLoadThreads) {
      const int chunk = unit / 8 % kChunks, group = unit / 8 / kChunks,
                token = group * 8 + unit % 8;
      const std::uint32_t to = tile + ((group * kTileChunks + chunk) * 8 + unit % 8) * 16;
      const bool valid = token < count && chunk * 8 < width;
      const T* from = rows + (valid ? token * tensor.token_stride + chunk * 8 : 0);
      if (tensor.vectors) {
        copy_async_16(to, from, valid);
      } else {
        copy_elements(to, from, valid ? width - chunk * 8 : 0);
      }
    }
  }

  // kCount chunks of all 64 rows, from kFirst on: a warp takes 8 rows of up to 64 bytes.
  template <int kTileChunks, int kFirst, int kCount>
  __device__ void copy_part(std::uint32_t tile, const T* rows, std::int64_t stride) const {
    constexpr int kGroups = 8 / kCount;  // of 8 rows, at a time
    static_assert(kGroups * kCount == 8);
    const int chunk = kFirst + thread_ / 8 % kCount, group = thread_ / 8 / kCount;
    const T* from = rows + (group * 8 + thread_ % 8) * stride + chunk * 8;
    const std::uint32_t to = tile + ((group * kTileChunks + chunk) * 8 + thread_ % 8) * 16;
#pragma unroll 2
    for (int i = 0; i < kCount; ++i) {
      copy_async_16(to + i * kGroups * kTileChunks * kCore, from + i * kGroups * 8 * stride, true);
    }
  }

  __device__ static void copy_elements(std::uint32_t to, const T* from, int count) {
    std::uint32_t word[4];
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t lo = 2 * i < count ? from[2 * i].bits : 0;
      const std::uint32_t hi = 2 * i + 1 < count ? from[2 * i + 1].bits : 0;
      word[i] = lo | hi << 16;
    }
    store_chunk(to, word);
  }

  __device__ void hand_over(std::uint32_t barriers, std::uint32_t x) const {
    switch (args_.feature) {
      case Feature::relu_eps: map_tile<Feature::relu_eps>(x); break;
      case Feature::relu: map_tile<Feature::relu>(x); break;
      case Feature::elu1: map_tile<Feature::elu1>(x); break;
      case Feature::identity: break;
    }
    fence_async();
    barrier_arrive(barriers + shared_.kFull);
  }

  template <Feature kFeature>
  __device__ void map_tile(std::uint32_t tile) const {
    const bool padded = args_.dk < D;
#pragma unroll 2
    for (int i = 0; i < kUnits / kLoadThreads; ++i) {
      const int unit = i * kLoadThreads + thread_;
      const std::uint32_t at = tile + unit * 16;
      std::uint32_t w[4];
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(at)
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = feature_pair<T, kFeature>(w[j]);
      if (padded) {  // columns past dk stay zero: phi(0) need not be
        const int left = args_.dk - unit / 8 % kChunks * 8;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (2 * j + 1 >= left) w[j] = 2 * j >= left ? 0u : w[j] & 0xffffu;
        }
      }
      store_chunk(at, w);
    }
  }

  __device__ void write_moving_table(std::uint32_t table, int first, int count) const {
    const bool valid = thread_ < count;
    const int block = valid ? args_.column_block[first + thread_] : 0;
    const int order = valid && args_.seen == Seen::tokens_before
                          ? args_.column_order[first + thread_]
                          : 0;
    const float* mixing = args_.mixing + head_ * args_.mixing_head_stride +
                          static_cast<std::int64_t>(block) * args_.mixing_column_stride;
    write_table<kSums, kMixingBlocks>(args_, table, thread_, block, order, valid, [&](int i) {
      return __ldg(mixing + static_cast<std::int64_t>(i) * args_.mixing_row_stride);
    });
  }

  // The eight columns after those of z are (1, 0, ..., 0): their product is the row sum.
  __device__ void write_ones() const {
    const std::uint32_t word[4] = {std::is_same_v<T, bf16> ? 0x3f80u : 0x3c00u, 0, 0, 0};
    for (int slot = 0; slot < shared_.slots; ++slot) {
      store_chunk(shared_.slot(slot) + kPlan.z +
                      ((thread_ / 8 * (kChunks + 1) + kChunks) * 8 + thread_ % 8) * 16,
                  word);
    }
  }

  const DenseArgs& args_;
  const Shared<D, kRowZ, kWarpgroups> shared_;
  const int thread_;
  int batch_ = 0, head_ = 0;
  Rings row_rings_;
  Ring column_ring_;
};

}  // namespace mhla::cuda::sm90
