// The loading warpgroup: brings tiles into shared memory ahead of the products, through cp.async,
// applies the feature map where they lie and hands them over through barriers.
#pragma once

#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/dense_args.h"
#include "mhla/cuda/sm90/feature_pair.cuh"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

// Where things lie in shared memory, as 32-bit shared addresses.
template <int D, bool kRowZ>
struct Shared {
  static constexpr int kRowBytes = kTile * D * 2 * (kRowZ ? 2 : 1);  // x, then z
  std::uint32_t base;
  int slots, buffers, slot_bytes;

  __device__ Shared(const DenseArgs& args, std::uint32_t base)
      : base(base), slots(args.slots), buffers(args.row_buffers), slot_bytes(args.slot_bytes) {}

  __device__ std::uint32_t column_full(int slot) const { return base + 8 * slot; }
  __device__ std::uint32_t column_empty(int slot) const { return base + 8 * (kMaxSlots + slot); }
  __device__ std::uint32_t row_full(int group, int buffer) const {
    return base + 8 * (2 * kMaxSlots + group * kMaxRowBuffers + buffer);
  }
  __device__ std::uint32_t row_empty(int group, int buffer) const {
    return row_full(group, buffer) + 8 * kWarpgroups * kMaxRowBuffers;
  }
  __device__ std::uint32_t row_tile(int group, int buffer) const {
    return base + kBarrierBytes + (group * buffers + buffer) * kRowBytes;
  }
  __device__ std::uint32_t slot(int i) const {
    return base + kBarrierBytes + kWarpgroups * buffers * kRowBytes + i * slot_bytes;
  }
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

template <typename T, int D, bool kRowZ, bool kOnes, bool kSums, int kMixingBlocks>
class Loader {
 public:
  __device__ Loader(const DenseArgs& args, std::uint32_t base)
      : args_(args), shared_(args, base), thread_(threadIdx.x % 128) {
    if constexpr (kOnes) write_ones();
  }

  // The order in which the products need tiles: rows of a pass first, then the columns.
  __device__ void run(int passes_sweeps) {
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
          if (row < group.rows) load_rows(g, group.row_first + row, group.rows - row);
        }
        if (args_.resident && pass > 0) continue;
        for (int sweep = 0; sweep < (args_.resident ? 1 : passes_sweeps); ++sweep) {
          for (int c = 0; c < group.columns; c += kTile) {
            load_columns(group.column_first + c, group.columns - c);
          }
        }
      }
    }
    while (pending_ > 0) finish_oldest();
  }

 private:
  static constexpr int kChunks = D / 8;
  static constexpr int kAhead = 5;  // tiles in flight before the oldest is waited for
  static constexpr SlotPlan kNoTable = slot_plan(D, 0, kOnes, kSums, kMixingBlocks);

  __device__ void load_rows(int g, int first, int count) {
    Ring& ring = row_ring_[g];
    acquire(shared_.row_empty(g, ring.index), ring.parity ^ 1);
    const std::uint32_t tile = shared_.row_tile(g, ring.index);
    load_tile<kChunks>(tile, args_.row_x, first, count, args_.dk);
    if constexpr (kRowZ) load_tile<kChunks>(tile + kTile * D * 2, args_.row_z, first, count, args_.dv);
    push(tile, shared_.row_full(g, ring.index));
    ring.advance(shared_.buffers);
  }

  __device__ void load_columns(int first, int count) {
    acquire(shared_.column_empty(column_ring_.index), column_ring_.parity ^ 1);
    const std::uint32_t slot = shared_.slot(column_ring_.index);
    const SlotPlan plan = slot_plan(D, args_.row_blocks, kOnes, kSums, kMixingBlocks);
    load_tile<kChunks>(slot, args_.column_x, first, count, args_.dk);
    load_tile<kChunks + (kOnes ? 1 : 0)>(slot + plan.z, args_.column_z, first, count, args_.dv);
    if constexpr (kSums) load_factors(slot + plan.factors, first, count);
    write_weights(slot + plan.weights, first, count);
    if constexpr (kSums) write_one_hot(slot + plan.one_hot, first, count);
    if (args_.seen == Seen::tokens_before && thread_ < kTile) {
      const int order = thread_ < count ? args_.column_order[first + thread_] : 0;
      asm volatile("st.shared.s32 [%0], %1;\n" ::"r"(slot + plan.order + 4 * thread_), "r"(order)
                   : "memory");
    }
    push(slot, shared_.column_full(column_ring_.index));
    column_ring_.advance(shared_.slots);
  }

  // 64 rows of a [B, N, H, width] tensor; zeros past `count` tokens and `width` columns. A thread
  // copies consecutive 16-byte chunks of shared memory; 32 lanes read 8 rows of 64 bytes.
  template <int kTileChunks>
  __device__ void load_tile(std::uint32_t tile, const RowTensor& tensor, int first, int count,
                            int width) {
    const T* rows = tensor.head<T>(batch_, head_) + first * tensor.token_stride;
#pragma unroll
    for (int i = 0; i < kTile * kChunks; i += 128) {
      const int unit = i + thread_;
      if (kTile * kChunks % 128 != 0 && unit >= kTile * kChunks) break;
      const int chunk = unit / 8 % kChunks, group = unit / 8 / kChunks;
      const int token = group * 8 + unit % 8;
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

  // weights[i][c] = m of row block i and of column c's block, 0 where the mask hides the pair.
  __device__ void write_weights(std::uint32_t weights, int first, int count) const {
    const int column = thread_ % kTile;
    const bool valid = column < count;
    const int block = valid ? args_.column_block[first + column] : 0;
    const float* mixing = args_.mixing + head_ * args_.mixing_head_stride +
                          static_cast<std::int64_t>(block) * args_.mixing_column_stride;
    // Queries see key blocks up to their own; the transposed kernel has keys as rows.
    const int low = kSums ? 0 : args_.seen == Seen::all ? 0 : block;
    const int high = kSums && args_.seen != Seen::all ? block : args_.row_blocks - 1;
#pragma unroll 4
    for (int i = thread_ / kTile; i < args_.row_blocks; i += 2) {
      const bool seen = valid && i >= low && i <= high;
      const float m = seen ? __ldg(mixing + static_cast<std::int64_t>(i) * args_.mixing_row_stride) : 0.f;
      asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(weights + 4 * (i * kWeightStride + column)), "f"(m)
                   : "memory");
    }
  }

  __device__ void load_factors(std::uint32_t factors, int first, int count) const {
    if (thread_ >= kTile) return;
    const bool valid = thread_ < count;
    const RowFactor* from =
        args_.factors + (static_cast<std::int64_t>(batch_) * args_.heads + head_) * args_.factor_stride +
        first + (valid ? thread_ : 0);
    copy_async_8(factors + 8 * thread_, from, valid);
  }

  // Row c holds a one (bf16) at the block of column c: products with it sum over a block.
  __device__ void write_one_hot(std::uint32_t tile, int first, int count) const {
    for (int unit = thread_; unit < kTile * kMixingBlocks / 8; unit += 128) {
      const int chunk = unit / 8 % (kMixingBlocks / 8);
      const int token = unit / 8 / (kMixingBlocks / 8) * 8 + unit % 8;
      const int at = token < count ? args_.column_block[first + token] - chunk * 8 : -1;
      std::uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = at == 2 * i ? 0x3f80u : at == 2 * i + 1 ? 0x3f800000u : 0u;
      store_chunk(tile + unit * 16, word);
    }
  }

  // The eight columns after those of z are (1, 0, ..., 0): their product is the row sum.
  __device__ void write_ones() const {
    const std::uint32_t one = std::is_same_v<T, bf16> ? 0x3f80u : 0x3c00u;
    for (int slot = 0; slot < shared_.slots; ++slot) {
      const std::uint32_t z = shared_.slot(slot) + kNoTable.z;
      for (int token = thread_; token < kTile; token += 128) {
        const std::uint32_t word[4] = {one, 0, 0, 0};
        store_chunk(z + ((token / 8 * (kChunks + 1) + kChunks) * 8 + token % 8) * 16, word);
      }
    }
  }

  // A buffer that is not free yet is waited for only after everything in flight was handed over:
  // the products may need it before they free the buffer.
  __device__ void acquire(std::uint32_t empty, int parity) {
    if (__all_sync(0xffffffffu, barrier_passed(empty, parity))) return;
    while (pending_ > 0) finish_oldest();
    barrier_wait(empty, parity);
  }

  // NOTE: registers are not indexable, hence the selections and the shift.
  __device__ void push(std::uint32_t x, std::uint32_t full) {
    ptx::copy_commit();
#pragma unroll
    for (int i = 0; i <= kAhead; ++i) {
      if (i == pending_) tiles_[i] = x, barriers_[i] = full;
    }
    if (++pending_ > kAhead) finish_oldest();
  }

  __device__ void finish_oldest() {
    switch (--pending_) {
      case 0: ptx::copy_wait<0>(); break;
      case 1: ptx::copy_wait<1>(); break;
      case 2: ptx::copy_wait<2>(); break;
      case 3: ptx::copy_wait<3>(); break;
      case 4: ptx::copy_wait<4>(); break;
      default: ptx::copy_wait<5>(); break;
    }
    switch (args_.feature) {
      case Feature::relu_eps: map_tile<Feature::relu_eps>(tiles_[0]); break;
      case Feature::relu: map_tile<Feature::relu>(tiles_[0]); break;
      case Feature::elu1: map_tile<Feature::elu1>(tiles_[0]); break;
      case Feature::identity: break;
    }
    fence_async();
    barrier_arrive(barriers_[0]);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) tiles_[i] = tiles_[i + 1], barriers_[i] = barriers_[i + 1];
  }

  // Each thread maps the chunks it copied itself, so no barrier is needed before.
  template <Feature kFeature>
  __device__ void map_tile(std::uint32_t tile) const {
#pragma unroll
    for (int i = 0; i < kTile * kChunks; i += 128) {
      const int unit = i + thread_;
      if (kTile * kChunks % 128 != 0 && unit >= kTile * kChunks) break;
      const std::uint32_t at = tile + unit * 16;
      std::uint32_t w[4];
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(at)
                   : "memory");
      // Columns past dk stay zero: phi(0) need not be.
      const int left = args_.dk - unit / 8 % kChunks * 8;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        w[j] = feature_pair<T, kFeature>(w[j]);
        if (2 * j + 1 >= left) w[j] = 2 * j >= left ? 0u : w[j] & 0xffffu;
      }
      store_chunk(at, w);
    }
  }

  const DenseArgs& args_;
  const Shared<D, kRowZ> shared_;
  const int thread_;
  int batch_ = 0, head_ = 0;
  Ring row_ring_[kWarpgroups], column_ring_;
  std::uint32_t tiles_[kAhead + 1], barriers_[kAhead + 1];
  int pending_ = 0;
};

}  // namespace mhla::cuda::sm90
