// Tables of the short forward that never change.
#pragma once

#include "mhla/cuda/sm90/dense_short_load.cuh"

namespace mhla::cuda::sm90 {

// What never changes: blocks of rows, ones, and mixing weights in the order in which threads need
// them. Reads start before the barrier of the thread block, ahead of the copies: behind those they
// would wait long. By the computing warps.
template <typename T, int D, bool kPairs>
class ShortTables {
 public:
  __device__ __forceinline__ explicit ShortTables(const ShortArgs& args) : args_(args) {
    const DenseArgs& dense = args.dense;
    column_block_ = column() < args.keys ? __ldg(dense.column_block + column()) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = thread_ + i * kThreads;
      row_block_[i] = token < args.queries ? __ldg(dense.row_block + token) : 0;
    }
#pragma unroll
    for (int i = 0; i < kMixing; ++i) {
      const int n = thread_ + i * kThreads, row = n / kMaxBlocks, block = n % kMaxBlocks;
      mixing_[i] = row < dense.row_blocks && block < dense.column_blocks
                       ? __ldg(dense.mixing + row * dense.mixing_row_stride +
                               block * dense.mixing_column_stride)
                       : 0.f;
    }
  }

  // The mixing matrix passes through the tiles of the outputs, which are free yet.
  template <typename Shared>
  __device__ __forceinline__ void write(const Shared& shared) const {
    constexpr ShortPlan kPlan = Shared::kPlan;
    const std::uint32_t matrix = shared.base + kPlan.o;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile(
          "st.shared.u8 [%0], %1;\n" ::"r"(shared.base + kPlan.row_blocks + thread_ + i * kThreads),
          "r"(row_block_[i])
          : "memory");
    }
    for (int i = 4 * thread_; i < kPlan.weights - kPlan.ones; i += 4 * kThreads) {
      const std::uint32_t pair = std::is_same_v<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
      store_float(shared.base + kPlan.ones + i, __uint_as_float(pair));
    }
#pragma unroll
    for (int i = 0; i < kMixing; ++i) {
      store_float(matrix + 4 * (thread_ + i * kThreads), mixing_[i]);
    }
    ptx::sync_warps(1, kThreads);

    const int n = thread_ % kColumns;
    const int place = kPairs ? n % 4 * kStride + n / 4 : n % 8 / 2 * kStride + n / 8 * 2 + n % 2;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i * (kThreads / kColumns) + thread_ / kColumns;
      const bool seen = args_.dense.seen == Seen::all || column_block_ <= row;
      const float weight = load_float(matrix + 4 * (row * kMaxBlocks + column_block_));
      store_float(shared.base + kPlan.weights + 4 * (row * 4 * kStride + place),
                  seen && column() < args_.keys ? weight : 0.f);
    }
    fence_async();
    ptx::sync_warps(1, kThreads);
  }

 private:
  static constexpr int kThreads = 256, kColumns = kShortKeys / (kPairs ? 2 : 1);
  static constexpr int kMixing = kShortBlocks * kMaxBlocks / kThreads;
  static constexpr int kRows = kShortBlocks * kColumns / kThreads;
  static constexpr int kStride = short_quad_stride(kPairs);
  static_assert(2 * kTile * D * 2 >= kShortBlocks * kMaxBlocks * 4);

  __device__ __forceinline__ int column() const {
    return kPairs ? 2 * (thread_ % kColumns) : thread_;
  }

  const ShortArgs& args_;
  const int thread_ = static_cast<int>(threadIdx.x);
  int column_block_, row_block_[2];
  float mixing_[kMixing];
};

}  // namespace mhla::cuda::sm90
