// Writing gradients of the whole-head backward: the feature map's derivative, and rows of 16 bytes
// a lane by way of shared memory.
#pragma once

#include "mhla/cuda/sm90/dense_tile.cuh"
#include "mhla/cuda/sm90/dense_whole_load.cuh"

namespace mhla::cuda::sm90 {

// What both halves know of the head they work on.
struct WholeHead {
  int batch, head;
  SetRing keys, queries;  // sets of shared memory
  std::uint32_t factors;  // of its queries, in shared memory
};

// For a pair of 16-bit numbers: one where above the limits, else zero; and the product.
template <typename T>
__device__ __forceinline__ std::uint32_t above(std::uint32_t x, std::uint32_t limits) {
  std::uint32_t y;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("set.gt.bf16x2.bf16x2 %0, %1, %2;\n" : "=r"(y) : "r"(x), "r"(limits));
  } else {
    asm("set.gt.f16x2.f16x2 %0, %1, %2;\n" : "=r"(y) : "r"(x), "r"(limits));
  }
  return y;
}
template <typename T>
__device__ __forceinline__ std::uint32_t product(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(z) : "r"(x), "r"(y));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;\n" : "=r"(z) : "r"(x), "r"(y));
  }
  return z;
}

// Rounds d * scale * phi'(x); phi(group, row) is the pair phi(x) of this thread. The derivative is
// zero or one except for elu1, so that it can follow the rounding.
template <typename T, int D, typename Phi>
__device__ __forceinline__ void round_rows(std::uint32_t (&words)[D / 8][2], const WholeSum<D>& d,
                                           const float (&scale)[2], Feature feature, Phi phi) {
  if (feature == Feature::elu1) {
    const Slope<T> slope(feature);
#pragma unroll
    for (int i = 0; i < D / 4; ++i) {
      const float2 x = unpack_pair<T>(phi(i / 2, i % 2));
      words[i / 2][i % 2] = pack_pair<T>(d[2 * i] * scale[i % 2] * slope(x.x),
                                         d[2 * i + 1] * scale[i % 2] * slope(x.y));
    }
    return;
  }
  constexpr std::uint32_t kLowest = std::is_same_v<T, bf16> ? 0xff80ff80u : 0xfc00fc00u;
  const std::uint32_t limits = feature == Feature::relu_eps   ? kEpsPair<T>
                               : feature == Feature::identity ? kLowest
                                                              : 0u;
#pragma unroll
  for (int i = 0; i < D / 4; ++i) {
    const std::uint32_t rounded = pack_pair<T>(d[2 * i] * scale[i % 2],
                                               d[2 * i + 1] * scale[i % 2]);
    words[i / 2][i % 2] = product<T>(rounded, above<T>(phi(i / 2, i % 2), limits));
  }
}

// NOTE: a branch around every store made each wait for the registers of the one before.
__device__ __forceinline__ void store_global(void* to, const std::uint32_t (&w)[4], bool valid) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2,%3,%4,%5};\n}\n" ::
          "r"(valid ? 1 : 0),
      "l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
      : "memory");
}

// Writes this warp's 16 of 64 rows to a [B, N, H, width] tensor, from accumulator layout. tokens:
// of the 64 rows. stage: where the 16 rows can lie in shared memory, from row `first` on.
template <typename T, int D, typename Stage>
__device__ __forceinline__ void store_staged(const RowTensor& tensor, const WholeHead& at,
                                             std::uint32_t tokens, int width, const Stage& stage,
                                             int first, const std::uint32_t (&words)[D / 8][2]) {
  if (tensor.data == nullptr) return;
  const int lane = threadIdx.x % 32;
  __syncwarp();  // the stage has been read
#pragma unroll
  for (int g = 0; g + 1 < D / 8; g += 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(
                     stage.chunk(first + lane % 16, g + lane / 16)),
                 "r"(words[g][0]), "r"(words[g][1]), "r"(words[g + 1][0]), "r"(words[g + 1][1])
                 : "memory");
  }
  if constexpr (D / 8 % 2 != 0) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};\n" ::"r"(
                     stage.chunk(first + lane % 16, 8)),
                 "r"(words[D / 8 - 1][0]), "r"(words[D / 8 - 1][1])
                 : "memory");
  }
  __syncwarp();

  // Four whole rows at a time
  T* rows = tensor.head<T>(at.batch, at.head);
  const std::uint32_t mine = tokens + threadIdx.x / 32 % 4 * 16 * 4;
  std::uint32_t w[4][4];
  int token[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    load_chunk(w[i], stage.chunk(first + 4 * i + lane / 8, lane % 8));
    token[i] = load_int(mine + (4 * i + lane / 8) * 4);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    store_global(rows + token[i] * tensor.token_stride + lane % 8 * 8, w[i],
                 token[i] >= 0 && lane % 8 * 8 < width);
  }
  if constexpr (D > 64) {
    constexpr int kChunks = Stage::kRestChunks, kRows = 32 / kChunks;
    const int chunk = 8 + lane % kChunks;
#pragma unroll
    for (int i = 0; i < (16 + kRows - 1) / kRows; ++i) {
      const int row = kRows * i + lane / kChunks % 16;
      load_chunk(w[i], stage.chunk(first + row, chunk));
      token[i] = load_int(mine + row * 4);
    }
#pragma unroll
    for (int i = 0; i < (16 + kRows - 1) / kRows; ++i) {
      store_global(rows + token[i] * tensor.token_stride + chunk * 8, w[i],
                   token[i] >= 0 && lane / kChunks < 16 && chunk * 8 < width);
    }
  }
}

// The same without a stage: neighbouring lanes swap halves of two column groups, so that four lanes
// store 32 contiguous bytes.
template <typename T, int D>
__device__ __forceinline__ void store_direct(const RowTensor& tensor, const WholeHead& at,
                                             std::uint32_t tokens, int width,
                                             const std::uint32_t (&words)[D / 8][2]) {
  if (tensor.data == nullptr) return;
  const int quad = threadIdx.x % 4;
  const bool odd = quad % 2 != 0;
  T* rows = tensor.head<T>(at.batch, at.head);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = load_int(tokens +
                               (threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * i) * 4);
    T* row = rows + max(token, 0) * tensor.token_stride;
#pragma unroll
    for (int g = 0; g + 1 < D / 8; g += 2) {
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words[g][i] : words[g + 1][i],
                                                  1);
      const int column = (odd ? g + 1 : g) * 8 + quad / 2 * 4;
      if (token >= 0 && column < width) {
        *reinterpret_cast<uint2*>(row + column) = odd ? make_uint2(other, words[g + 1][i])
                                                      : make_uint2(words[g][i], other);
      }
    }
    if constexpr (D / 8 % 2 != 0) {
      const int column = D - 8 + quad * 2;
      if (token >= 0 && column < width) {
        *reinterpret_cast<std::uint32_t*>(row + column) = words[D / 8 - 1][i];
      }
    }
  }
}

}  // namespace mhla::cuda::sm90
