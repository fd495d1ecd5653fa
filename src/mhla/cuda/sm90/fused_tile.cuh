// Row tiles of one warp and their products, for the fused kernel.
#pragma once

#include "mhla/cuda/device/blocks.cuh"
#include "mhla/cuda/device/feature_map.cuh"
#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/fused_args.h"
#include "mhla/cuda/sm90/packed_map.cuh"
#include "mhla/cuda/sm90/store_matrix.cuh"

namespace mhla::cuda::sm90 {

// D: padded head width. MB: 16-row tiles of the mixing matrix, both ways. kRegular: every block has
// the same shape and whole row tiles, rows start on 16-byte boundaries and are D wide, and offsets
// inside a head fit 32 bits. Index arithmetic is what this kernel would otherwise wait for.
template <int D_, int MB_, bool kRegular>
struct Fused {
  static constexpr int D = D_, MB = MB_;
  static constexpr bool kIsRegular = kRegular;
  static constexpr int kLd = D + kFusedPad;
  static constexpr int kTile = kFusedRows * kLd;  // elements of a row tile
  static constexpr int kSummary = fused_summary_elements(D);
  static constexpr int kEntries = D * kLd;  // of a summary, row padding included
  static constexpr int kThreads = fused_max_warps(D) * 32;
  static constexpr int kPerRow = D / 8;          // chunks
  static constexpr int kRowStep = 32 / kPerRow;  // a lane's chunks share their column
  static constexpr int kOwned = kFusedRows / kRowStep;

  static __device__ __forceinline__ int own_column() {
    return static_cast<int>(threadIdx.x) % kPerRow * 8;
  }
  static __device__ __forceinline__ int own_row(int i) {
    return static_cast<int>(threadIdx.x) / kPerRow + i * kRowStep;
  }

  // Tokens of the rows whose chunks this lane owns; -1 past the end of the block. `offsets` holds
  // the token of every position, counted from the block's first.
  struct Rows {
    int token[kOwned];
    __device__ __forceinline__ Rows(const int* offsets, const DeviceBlock& block, int first) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int position = first + own_row(i);
        if constexpr (kRegular) {
          token[i] = block.first + offsets[position];
        } else {
          token[i] = position < block.count ? block.token(position) : -1;
        }
      }
    }
  };

  static __device__ __forceinline__ void load(bf16* tile, const bf16* head, const RowTensor& tensor,
                                              const Rows& rows, int cols) {
    const int col = own_column();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      bf16* to = tile + own_row(i) * kLd + col;
      if constexpr (kRegular) {
        const unsigned offset = rows.token[i] * static_cast<unsigned>(tensor.token_stride);
        ptx::copy_async(to, head + col + offset, true);
      } else {
        const bool valid = rows.token[i] >= 0;
        const bf16* from = head + (valid ? rows.token[i] : 0) * tensor.token_stride + col;
        for (int c = 0; c < 8; ++c) to[c] = valid && col + c < cols ? from[c] : bf16{0};
      }
    }
  }

  static __device__ __forceinline__ void write(const bf16* tile, bf16* head,
                                               const RowTensor& tensor, const Rows& rows,
                                               int cols) {
    const int col = own_column();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const bf16* from = tile + own_row(i) * kLd + col;
      if constexpr (kRegular) {
        const unsigned offset = rows.token[i] * static_cast<unsigned>(tensor.token_stride);
        *reinterpret_cast<Chunk*>(head + col + offset) = *reinterpret_cast<const Chunk*>(from);
      } else if (rows.token[i] >= 0) {
        bf16* to = head + rows.token[i] * tensor.token_stride + col;
        for (int c = 0; c < min(8, cols - col); ++c) to[c] = from[c];
      }
    }
  }

  // phi in place; rows and columns that do not exist become zero, not eps. Regular layouts have
  // none, and phi is applied where the fragments are: nothing to do here.
  static __device__ __forceinline__ void map(bf16* tile, const Map& map, int rows, int cols) {
    if constexpr (kRegular) return;
    const int col = own_column();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      Chunk* place = reinterpret_cast<Chunk*>(tile + own_row(i) * kLd + col);
      Chunk chunk = *place;
      map_chunk(map, chunk);
      if (own_row(i) >= rows) chunk = Chunk{};
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (col + c >= cols) chunk.word[c / 2] &= c % 2 ? 0x0000ffffu : 0xffff0000u;
      }
      *place = chunk;
    }
  }

  static __device__ __forceinline__ void map_chunk(const Map& map, Chunk& chunk) {
    if (map.identity) return;
    if (!map.elu1) return relu_bf16(map, chunk);
    float x[8];
    unpack<bf16>(chunk, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = feature(map, x[i]);
    chunk = pack<bf16>(x);
  }

  // Column D of a tile of v is one: the product with phi(k) then carries the key sums.
  static __device__ __forceinline__ void write_ones(bf16* tile) {
    if (threadIdx.x < kFusedRows) {
      *reinterpret_cast<Chunk*>(tile + threadIdx.x * kLd + D) = Chunk{{0x3f80u, 0, 0, 0}};
    }
  }

  // acc += phi(k)^T v over the 16 rows of the tiles.
  static __device__ __forceinline__ void add_products(float (&acc)[D / 16][D / 8 + 1][4],
                                                      const PackedMap& map, const bf16* k_tile,
                                                      const bf16* v_tile) {
    const int lane = threadIdx.x;
    const bf16* pk = k_tile + (lane % 8 + lane / 16 * 8) * kLd + lane / 8 % 2 * 8;
    const bf16* pv = v_tile + lane % 16 * kLd + lane / 16 * 8;
    std::uint32_t k[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; ++i) ptx::load_matrix_transposed(k[i], pk + i * 16);
    if constexpr (kRegular) map.apply(k);
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
      std::uint32_t v[4];
      ptx::load_matrix_transposed(v, pv + j * 8);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        ptx::mma_bf16(acc[i][j], k[i], v[0], v[1]);
        ptx::mma_bf16(acc[i][j + 1], k[i], v[2], v[3]);
      }
    }
    std::uint32_t ones[2];
    ptx::load_matrix_pair_transposed(ones, v_tile + lane % 16 * kLd + D);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) ptx::mma_bf16(acc[i][D / 8], k[i], ones[0], ones[1]);
  }

  // Fragments of phi(q) over the whole width.
  static __device__ __forceinline__ void load_queries(std::uint32_t (&q)[D / 16][4],
                                                      const PackedMap& map, const bf16* q_tile) {
    const bf16* pq = q_tile + threadIdx.x % 16 * kLd + threadIdx.x / 16 * 8;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) ptx::load_matrix(q[i], pq + i * 16);
    if constexpr (kRegular) map.apply(q);
  }

  // acc = phi(q) S; the last tile of columns holds the denominators.
  static __device__ __forceinline__ void multiply(float (&acc)[D / 8 + 1][4], const PackedMap& map,
                                                  const bf16* q_tile, const bf16* summary) {
    const int lane = threadIdx.x;
    std::uint32_t q[D / 16][4];
    load_queries(q, map, q_tile);
    const bf16* ps = summary + lane % 16 * kLd + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < D; step += 16) {
#pragma unroll
      for (int j = 0; j < D / 8; j += 2) {
        std::uint32_t s[4];
        ptx::load_matrix_transposed(s, ps + step * kLd + j * 8);
        ptx::mma_bf16(acc[j], q[step / 16], s[0], s[1]);
        ptx::mma_bf16(acc[j + 1], q[step / 16], s[2], s[3]);
      }
      std::uint32_t z[2];
      ptx::load_matrix_pair_transposed(z, summary + (step + lane % 16) * kLd + D);
      ptx::mma_bf16(acc[D / 8], q[step / 16], z[0], z[1]);
    }
  }

  // acc[0] and acc[2] = phi(q) z, in the lanes 0, 4, ..., 28.
  static __device__ __forceinline__ void multiply_sums(float (&acc)[4], const PackedMap& map,
                                                       const bf16* q_tile, const bf16* summary) {
    const int lane = threadIdx.x;
    std::uint32_t q[D / 16][4];
    load_queries(q, map, q_tile);
#pragma unroll
    for (int step = 0; step < D; step += 16) {
      std::uint32_t z[2];
      ptx::load_matrix_pair_transposed(z, summary + (step + lane % 16) * kLd + D);
      ptx::mma_bf16(acc, q[step / 16], z[0], z[1]);
    }
  }

  // 16 rows of sums, rounded, the column past D included.
  static __device__ __forceinline__ void store_rows(bf16* rows, const float (&acc)[D / 8 + 1][4]) {
    const int lane = threadIdx.x;
    bf16* own = rows + lane % 16 * kLd + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
      ptx::store_matrix(own + j * 8, ptx::pack_bf16(acc[j][0], acc[j][1]),
                        ptx::pack_bf16(acc[j][2], acc[j][3]),
                        ptx::pack_bf16(acc[j + 1][0], acc[j + 1][1]),
                        ptx::pack_bf16(acc[j + 1][2], acc[j + 1][3]));
    }
    ptx::store_matrix_2(rows + lane % 16 * kLd + D, ptx::pack_bf16(acc[D / 8][0], acc[D / 8][1]),
                        ptx::pack_bf16(acc[D / 8][2], acc[D / 8][3]));
  }
};

}  // namespace mhla::cuda::sm90
