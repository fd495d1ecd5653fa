// The bulk copy engine (TMA): boxes of tensors into shared memory, and the swizzled tiles it
// writes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
// Arrives, and adds to the bytes that have to land before the phase completes.
__device__ __forceinline__ void arrive_and_expect(std::uint32_t barrier, int bytes) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}\n" ::"r"(
          barrier),
      "r"(bytes)
      : "memory");
}

// Where a box of a [B, N, H, D] tensor starts.
struct BoxStart {
  int column, token, head, batch;
};
// One thread copies a box; zeros where it leaves the tensor. The barrier counts the bytes.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map,
                                         const BoxStart& start, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(start.column), "r"(start.token), "r"(start.head),
      "r"(start.batch)
      : "memory");
}

// The same for data that is not wanted in the L2 cache for long.
__device__ __forceinline__ void copy_box_once(std::uint32_t to, const CUtensorMap& map,
                                              const BoxStart& start, std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], policy;\n}\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(start.column), "r"(start.token), "r"(start.head),
      "r"(start.batch)
      : "memory");
}

// One thread copies a box from shared memory, less what lies outside of the tensor.
__device__ __forceinline__ void store_box(const CUtensorMap& map, const BoxStart& start,
                                          std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(
          &map),
      "r"(from), "r"(start.column), "r"(start.token), "r"(start.head), "r"(start.batch)
      : "memory");
}
// The same for data that is not wanted in the L2 cache for long.
__device__ __forceinline__ void store_box_once(const CUtensorMap& map, const BoxStart& start,
                                               std::uint32_t from) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint"
      " [%0, {%2, %3, %4, %5}], [%1], policy;\n}\n" ::"l"(&map),
      "r"(from), "r"(start.column), "r"(start.token), "r"(start.head), "r"(start.batch)
      : "memory");
}
// Bytes as they lie, to shared memory (the barrier counts them) and from there.
__device__ __forceinline__ void copy_linear(std::uint32_t to, const void* from, int bytes,
                                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_linear(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Waits until what this thread stores has been read from shared memory, less the last kPending
// groups that it committed.
template <int kPending = 0>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// The same until it is in memory.
template <int kPending = 0>
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Orders accesses of the engine to memory after those before, and the other way round.
__device__ __forceinline__ void fence_engine() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

// A tile of kColumns columns as the engine writes it: a row of 128, 64 or 16 bytes for every token.
// The 16-byte chunks of a row are swizzled over the banks; a row of one chunk needs none.
template <int kColumns>
struct SwizzledTile {
  static_assert(kColumns == 64 || kColumns == 32 || kColumns == 8);
  static constexpr int kRowBytes = kColumns * 2;
  static constexpr std::uint32_t kMode = kColumns == 64 ? 1 : kColumns == 32 ? 2 : 0;

  // Byte offset of a chunk; the tile starts at a multiple of 1024 bytes.
  static __device__ __forceinline__ int chunk(int row, int index) {
    if constexpr (kColumns == 64) return row * 128 + ((index ^ (row % 8)) * 16);
    if constexpr (kColumns == 32) return row * 64 + ((index ^ (row / 2 % 4)) * 16);
    return row * 16;
  }
  // Operand whose inner dimension is columns 16 * step and on. NOTE: a single chunk is read twice;
  // the other factor is zero there.
  static __device__ __forceinline__ Operand columns_inner(std::uint32_t tile, int step) {
    return describe(tile + step * 32, 0, 8 * kRowBytes);
  }
  // Operand whose inner dimension is tokens 16 * step and on, and whose outer one is all columns.
  // NOTE: with a swizzle the second stride of the descriptor runs over groups of 8 tokens, without
  // one the first.
  static __device__ __forceinline__ Operand tokens_inner(std::uint32_t tile, int step) {
    return describe(tile + step * 16 * kRowBytes, 8 * kRowBytes, 8 * kRowBytes);
  }
  // The same with eight columns more, which come from rows at `more`, a multiple of 1024 bytes past
  // the tile, for every step.
  static __device__ __forceinline__ Operand tokens_inner(std::uint32_t tile, int step,
                                                         std::uint32_t more) {
    constexpr std::uint32_t kStep = 16 * kRowBytes >> 4;
    const std::uint32_t distance = (more - tile) >> 4,
                        moved = static_cast<std::uint32_t>(step) * kStep;
    if constexpr (kMode == 0) {
      return {(tile >> 4) + (8u * kRowBytes >> 4 << 16) + moved, distance - moved};
    }
    // NOTE: one addition of a constant a step.
    return {(tile >> 4) + (distance << 16) + (moved - (moved << 16)),
            (8u * kRowBytes >> 4) | kMode << 30};
  }

 private:
  static __device__ __forceinline__ Operand describe(std::uint32_t at, int first, int second) {
    return {(at >> 4) + (static_cast<std::uint32_t>(first >> 4) << 16),
            static_cast<std::uint32_t>(second >> 4) | kMode << 30};
  }
};

}  // namespace mhla::cuda::sm90
