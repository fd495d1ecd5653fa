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
template <int D, bool kRowZ>
struct Shared {
  static constexpr int kRowBytes = kTile * D * 2 * (kRowZ ? 2 : 1);  // x, then z
  std::uint32_t base;
  int slots, buffers, slot_bytes;

  __device__ Shared(const DenseArgs& args, std::uint32_t base)
      : base(base), slots(args.slots), buffers(args.row_buffers), slot_bytes(args.slot_bytes) {}

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
  __device__ std::uint32_t slot(int i) const {
    return base + kBarrierBytes + kWarpgroups * buffers * kRowBytes + i * slot_bytes;
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

// kSums: the transposed kernel, whose slots also hold row factors and the one-hot blocks.
template <typename T, int D, bool kRowZ, bool kOnes, bool kSums, int kMixingBlocks>
class Loader {
 public:
  __device__ Loader(const DenseArgs& args, std::uint32_t base)
      : args_(args),
        shared_(args, base),
        plan_(slot_plan(D, args.row_blocks, kOnes, kSums, kMixingBlocks)),
        thread_(threadIdx.x % kLoadThreads) {}

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

  // The order in which the products need tiles: rows of a pass first, then the columns.
  template <bool kCopy>
  __device__ void walk(int sweeps) {
    int written = 0;  // slots whose tables are there
    for (int item = blockIdx.x; item < args_.items; item += gridDim.x) {
      const int pair = item / args_.groups_count;
      const DenseGroup group = args_.groups[item - pair * args_.groups_count];
      batch_ = pair / args_.heads;
      head_ = pair - batch_ * args_.heads;
      const int passes = (group.rows + kTile * kWarpgroups - 1) / (kTile * kWarpgroups);
      for (int pass = 0; pass < passes; ++pass) {
#pragma unroll
        for (int g = 0; g < kWarpgroups; ++g) {
          const int row = (pass * kWarpgroups + g) * kTile;
          if (row >= group.rows) continue;
          Ring& ring = row_ring_[g];
          const std::uint32_t barriers = shared_.row_barriers(g, ring.index);
          const std::uint32_t tile = shared_.row_tile(g, ring.index);
          if constexpr (kCopy) {
            copy_rows(barriers, ring, tile, group.row_first + row, group.rows - row);
          } else {
            barrier_wait(barriers + shared_.kLanded, ring.parity);
            hand_over(barriers, tile);
          }
          ring.advance(shared_.buffers);
        }
        if (args_.resident && pass > 0) continue;
        for (int sweep = 0; sweep < (args_.resident ? 1 : sweeps); ++sweep) {
          for (int c = 0; c < group.columns; c += kTile) {
            const int first = group.column_first + c, count = group.columns - c;
            const std::uint32_t barriers = shared_.column_barriers(column_ring_.index);
            const std::uint32_t slot = shared_.slot(column_ring_.index);
            if constexpr (kCopy) {
              copy_columns(barriers, slot, first, count);
            } else {
              barrier_wait(barriers + shared_.kLanded, column_ring_.parity);
              if (!args_.tables_stay || written < shared_.slots) write_tables(slot, first, count);
              ++written;
              hand_over(barriers, slot);
            }
            column_ring_.advance(shared_.slots);
          }
        }
      }
    }
  }

  __device__ void copy_rows(std::uint32_t barriers, const Ring& ring, std::uint32_t tile, int first,
                            int count) const {
    barrier_wait(barriers + shared_.kEmpty, ring.parity ^ 1);
    copy_tile<kChunks>(tile, args_.row_x, first, count, args_.dk);
    if constexpr (kRowZ) copy_tile<kChunks>(tile + kTile * D * 2, args_.row_z, first, count, args_.dv);
    land(barriers, args_.row_x.vectors && (!kRowZ || args_.row_z.vectors));
  }

  __device__ void copy_columns(std::uint32_t barriers, std::uint32_t slot, int first, int count) const {
    barrier_wait(barriers + shared_.kEmpty, column_ring_.parity ^ 1);
    copy_tile<kChunks>(slot, args_.column_x, first, count, args_.dk);
    copy_tile<kChunks + (kOnes ? 1 : 0)>(slot + plan_.z, args_.column_z, first, count, args_.dv);
    if constexpr (kSums) {
      const bool valid = thread_ < count;
      const std::int64_t pair = static_cast<std::int64_t>(batch_) * args_.heads + head_;
      copy_async_8(slot + plan_.factors + 8 * thread_,
                   args_.factors + pair * args_.factor_stride + first + (valid ? thread_ : 0), valid);
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

  // 64 rows of a [B, N, H, width] tensor; zeros past `count` tokens and `width` columns. A thread
  // copies consecutive 16-byte chunks of shared memory; 32 lanes read 8 rows of 64 bytes.
  template <int kTileChunks>
  __device__ void copy_tile(std::uint32_t tile, const RowTensor& tensor, int first, int count,
                            int width) const {
    const T* rows = tensor.head<T>(batch_, head_) + first * tensor.token_stride;
    int chunk = thread_ / 8 % kChunks, group = thread_ / 8 / kChunks;
#pragma unroll 2
    for (int i = 0; i < kUnits / kLoadThreads; ++i) {
      const int token = group * 8 + thread_ % 8;
      const std::uint32_t to = tile + ((group * kTileChunks + chunk) * 8 + thread_ % 8) * 16;
      const bool valid = token < count && chunk * 8 < width;
      const T* from = rows + (valid ? token * tensor.token_stride + chunk * 8 : 0);
      if (tensor.vectors) {
        copy_async_16(to, from, valid);
      } else {
        copy_elements(to, from, valid ? width - chunk * 8 : 0);
      }
      chunk += kLoadThreads / 8 % kChunks;
      group += kLoadThreads / 8 / kChunks;
      if (chunk >= kChunks) chunk -= kChunks, ++group;
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

  __device__ static void store_chunk(std::uint32_t to, const std::uint32_t (&w)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
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
#pragma unroll 4
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

  // What of a slot depends on the blocks of its columns only.
  __device__ void write_tables(std::uint32_t slot, int first, int count) const {
    const int column = thread_;
    const bool valid = column < count;
    const int block = valid ? args_.column_block[first + column] : 0;
    write_weights(slot + plan_.weights + 4 * column, block, valid);
    if constexpr (kSums) write_one_hot(slot + plan_.one_hot, column, valid ? block : -1);
    if (args_.seen == Seen::tokens_before) {
      const int order = valid ? args_.column_order[first + column] : 0;
      asm volatile("st.shared.s32 [%0], %1;\n" ::"r"(slot + plan_.order + 4 * column), "r"(order)
                   : "memory");
    }
  }

  // weights[i][c] = m of row block i and of column c's block, 0 where the mask hides the pair.
  __device__ void write_weights(std::uint32_t weights, int block, bool valid) const {
    const float* mixing = args_.mixing + head_ * args_.mixing_head_stride +
                          static_cast<std::int64_t>(block) * args_.mixing_column_stride;
    // Queries see key blocks up to their own; the transposed kernel has keys as rows.
    const int low = kSums || args_.seen == Seen::all ? 0 : block;
    const int high = kSums && args_.seen != Seen::all ? block : args_.row_blocks - 1;
#pragma unroll 4
    for (int i = 0; i < args_.row_blocks; ++i) {
      const bool seen = valid && i >= low && i <= high;
      const float m = seen ? __ldg(mixing + static_cast<std::int64_t>(i) * args_.mixing_row_stride) : 0.f;
      asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(weights + 4 * i * kWeightStride), "f"(m)
                   : "memory");
    }
  }

  // Row c holds a one (bf16) at the block of column c: products with it sum over a block.
  __device__ static void write_one_hot(std::uint32_t tile, int column, int block) {
#pragma unroll
    for (int chunk = 0; chunk < kMixingBlocks / 8; ++chunk) {
      const int at = block - chunk * 8;
      std::uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = at == 2 * i ? 0x3f80u : at == 2 * i + 1 ? 0x3f800000u : 0u;
      store_chunk(tile + ((column / 8 * (kMixingBlocks / 8) + chunk) * 8 + column % 8) * 16, word);
    }
  }

  // The eight columns after those of z are (1, 0, ..., 0): their product is the row sum.
  __device__ void write_ones() const {
    const std::uint32_t word[4] = {std::is_same_v<T, bf16> ? 0x3f80u : 0x3c00u, 0, 0, 0};
    for (int slot = 0; slot < shared_.slots; ++slot) {
      store_chunk(shared_.slot(slot) + plan_.z +
                      ((thread_ / 8 * (kChunks + 1) + kChunks) * 8 + thread_ % 8) * 16,
                  word);
    }
  }

  const DenseArgs& args_;
  const Shared<D, kRowZ> shared_;
  const SlotPlan plan_;
  const int thread_;
  int batch_ = 0, head_ = 0;
  Ring row_ring_[kWarpgroups], column_ring_;
};

}  // namespace mhla::cuda::sm90
