// Tiles of tokens in shared memory: gathering rows of a block, mapping them in place, writing them.
#pragma once

#include "mhla/cuda/device/blocks.cuh"
#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda {

// Rows are padded by one chunk, which keeps ldmatrix free of bank conflicts for every width that
// is a multiple of 16.
template <typename T>
inline constexpr int kPad = kChunk<T>;

// [kRows][kCols] of T, worked on by kThreads threads; tensors may be of a narrower type. Each
// thread owns fixed chunks: what it loads it may transform before the barrier.
template <typename T, int kRows, int kCols, int kThreads>
struct RowTile {
  static constexpr int kLd = kCols + kPad<T>;
  static constexpr int kElements = kRows * kLd;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr int kPerRow = kCols / kChunk<T>;
  static constexpr int kChunks = kRows * kPerRow;
  static constexpr int kRowStep = kThreads / kPerRow;  // a thread's chunks share their column
  static_assert(kThreads % kPerRow == 0, "a thread's chunks must share their column");
  static_assert(kRows % kRowStep == 0, "all threads own equally many chunks");

  static __device__ __forceinline__ int own_column() {
    return static_cast<int>(threadIdx.x) % kPerRow * kChunk<T>;
  }
  static __device__ __forceinline__ int own_row(int i) {
    return static_cast<int>(threadIdx.x) / kPerRow + i * kRowStep;
  }
  static constexpr int kOwned = kRows / kRowStep;

  // Starts loading positions first..first + kRows of a block; columns past `cols` and rows past
  // the block become zeros. Asynchronous when rows are aligned and of T, otherwise complete on
  // return.
  template <typename In>
  static __device__ __forceinline__ void load(T* tile, const In* head, const RowTensor& tensor,
                                              const DeviceBlock& block, int first, int cols) {
    const int col = own_column();
    if (std::is_same_v<In, T> && tensor.vectors) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int row = own_row(i);
        const bool valid = first + row < block.count && col < cols;
        const std::int64_t token = valid ? block.token(first + row) : 0;
        ptx::copy_async(tile + row * kLd + col,
                        valid ? head + token * tensor.token_stride + col : head, valid);
      }
    } else {
      for (int i = 0; i < kOwned; ++i) {
        const int row = own_row(i);
        const bool valid = first + row < block.count;
        const std::int64_t token = valid ? block.token(first + row) : 0;
        for (int c = col; c < col + kChunk<T>; ++c) {
          tile[row * kLd + c] = valid && c < cols
                                    ? converted<T>(head[token * tensor.token_stride + c])
                                    : from_float<T>(0.f);
        }
      }
    }
  }

  // f(row, col, x): may change the chunk x in place; own chunks only.
  template <typename F>
  static __device__ __forceinline__ void transform(T* tile, F&& f) {
    const int col = own_column();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int row = own_row(i);
      Chunk* chunk = reinterpret_cast<Chunk*>(tile + row * kLd + col);
      float x[kChunk<T>];
      unpack<T>(*chunk, x);
      if (f(row, col, x)) *chunk = pack<T>(x);
    }
  }

  // Writes the rows that exist and the first `cols` columns.
  template <typename Out>
  static __device__ __forceinline__ void store(const T* tile, Out* head, const RowTensor& tensor,
                                               const DeviceBlock& block, int first, int cols) {
    const int col = own_column();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int row = own_row(i);
      if (first + row >= block.count || col >= cols) continue;
      Out* out = head + static_cast<std::int64_t>(block.token(first + row)) * tensor.token_stride;
      if (std::is_same_v<Out, T> && tensor.vectors) {
        *reinterpret_cast<Chunk*>(out + col) = *reinterpret_cast<const Chunk*>(tile + row * kLd +
                                                                               col);
      } else {
        for (int c = col; c < min(col + kChunk<T>, cols); ++c) {
          out[c] = converted<Out>(tile[row * kLd + c]);
        }
      }
    }
  }
};

// A contiguous [kRows][kCols] matrix (a summary) to and from padded rows.
template <typename T, int kRows, int kCols, int kThreads>
struct MatrixTile {
  static constexpr int kLd = kCols + kPad<T>;
  static constexpr int kElements = kRows * kLd;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr int kPerRow = kCols / kChunk<T>;

  static __device__ __forceinline__ void load(T* tile, const T* matrix) {
    for_each_chunk(
        [&](int at, int chunk) { ptx::copy_async(tile + at, matrix + chunk * kChunk<T>, true); });
  }
  static __device__ __forceinline__ void store(const T* tile, T* matrix) {
    for_each_chunk([&](int at, int chunk) {
      *reinterpret_cast<Chunk*>(matrix + chunk * kChunk<T>) = *reinterpret_cast<const Chunk*>(tile +
                                                                                              at);
    });
  }

 private:
  // f(place in the tile, number of the chunk). The trip count is a constant, and so are the
  // distances between a thread's chunks.
  template <typename F>
  static __device__ __forceinline__ void for_each_chunk(F&& f) {
    constexpr int kChunks = kRows * kPerRow, kTurns = (kChunks + kThreads - 1) / kThreads;
    const int first = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int chunk = first + turn * kThreads;
      if (kChunks % kThreads != 0 && chunk >= kChunks) break;
      if constexpr (kThreads % kPerRow == 0) {
        const int row = static_cast<int>(threadIdx.x / kPerRow) + turn * (kThreads / kPerRow);
        f(row * kLd + static_cast<int>(threadIdx.x % kPerRow) * kChunk<T>, chunk);
      } else {
        const auto c = static_cast<unsigned>(chunk);
        f(static_cast<int>(c / kPerRow * kLd + c % kPerRow * kChunk<T>), chunk);
      }
    }
  }
};

// f(i) for i < kCount, spread over the threads.
template <int kCount, int kThreads, typename F>
__device__ __forceinline__ void for_each_of(F&& f) {
#pragma unroll
  for (int first = 0; first < kCount; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    if (i < kCount) f(i);
  }
}

}  // namespace mhla::cuda
