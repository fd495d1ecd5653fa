// Copies of boxes between tensors and shared memory, and shared memory of a whole cluster (sm_90).
#pragma once

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/fused_boxes.h"

namespace mhla::cuda::sm90 {

// Where a box starts in [batch][head][y][x][column].
struct BoxPlace {
  int x, y, head, batch;
};

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
// The barrier completes its phase after this many more bytes.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void load_box(void* tile, const TensorMap& map, const BoxPlace& at,
                                         std::uint32_t barrier, int column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];\n" ::"r"(ptx::shared_address(tile)),
      "l"(&map), "r"(column), "r"(at.x), "r"(at.y), "r"(at.head), "r"(at.batch), "r"(barrier)
      : "memory");
}
// The same as far as the L2 cache.
__device__ __forceinline__ void ask_for_box(const TensorMap& map, const BoxPlace& at,
                                            int column = 0) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];\n" ::"l"(&map),
      "r"(column), "r"(at.x), "r"(at.y), "r"(at.head), "r"(at.batch)
      : "memory");
}
__device__ __forceinline__ void store_box(const TensorMap& map, const BoxPlace& at,
                                          const void* tile, int column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], "
      "[%6];\n" ::"l"(&map),
      "r"(column), "r"(at.x), "r"(at.y), "r"(at.head), "r"(at.batch), "r"(ptx::shared_address(tile))
      : "memory");
}

// A tile of a tensor, panel by panel; one thread.
template <typename X>
__device__ __forceinline__ void load_tile(unsigned char* tile, const TensorMap& map,
                                          const BoxPlace& at, std::uint32_t barrier) {
#pragma unroll
  for (int p = 0; p < X::kPanels; ++p) {
    load_box(tile + p * X::kPanel, map, at, barrier, p * X::kPanelColumns);
  }
}
template <typename X>
__device__ __forceinline__ void ask_for_tile(const TensorMap& map, const BoxPlace& at) {
#pragma unroll
  for (int p = 0; p < X::kPanels; ++p) ask_for_box(map, at, p * X::kPanelColumns);
}
template <typename X>
__device__ __forceinline__ void store_tile(const TensorMap& map, const BoxPlace& at,
                                           const unsigned char* tile) {
#pragma unroll
  for (int p = 0; p < X::kPanels; ++p) {
    store_box(map, at, tile + p * X::kPanel, p * X::kPanelColumns);
  }
}

__device__ __forceinline__ void stores_commit() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Until the stores of this thread have read their tiles.
__device__ __forceinline__ void stores_wait() {
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// A barrier of the cluster in two halves. Orders no memory accesses but initialised barriers.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// A shared-memory address in another thread block of the cluster.
__device__ __forceinline__ std::uint32_t remote(std::uint32_t local, int rank) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(local), "r"(rank));
  return address;
}
// Bytes from this thread block's shared memory to another's, which its barrier counts.
__device__ __forceinline__ void push(std::uint32_t to, std::uint32_t from, int bytes,
                                     std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];\n" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void push(std::uint32_t to, const Chunk& chunk, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
      "[%5];\n" ::"r"(to),
      "r"(chunk.word[0]), "r"(chunk.word[1]), "r"(chunk.word[2]), "r"(chunk.word[3]), "r"(barrier)
      : "memory");
}
// The low (high) halves of two words.
__device__ __forceinline__ std::uint32_t low_halves(std::uint32_t x, std::uint32_t y) {
  return __byte_perm(x, y, 0x5410);
}
__device__ __forceinline__ std::uint32_t high_halves(std::uint32_t x, std::uint32_t y) {
  return __byte_perm(x, y, 0x7632);
}

}  // namespace mhla::cuda::sm90
