// Mixing across a cluster. Every thread block is sent one slice of all summaries, mixes it, and
// sends the mixture to the thread blocks that own the blocks.
#pragma once

#include "mhla/cuda/sm90/fused_box_tile.cuh"

namespace mhla::cuda::sm90 {

template <typename X>
struct BoxMix {
  static constexpr int MT = X::MT;
  static constexpr int kParts = X::kWarps / MT;  // warps that share a tile of rows
  static_assert(X::kWarps % MT == 0);
  using Weights = std::uint32_t[MT][4];

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x / 32); }
  static __device__ __forceinline__ int row_tile() { return warp() % MT; }
  static __device__ __forceinline__ int part() { return warp() / MT; }
  // 16 rows of the mixing matrix, or of its transpose, as first factors.
  template <bool kTransposed>
  static __device__ __forceinline__ void load_weights(Weights& m, const BoxArgs& args, int item,
                                                      int lane) {
    const float* mixing = args.mixing + item % args.heads * args.mixing_head_stride;
    const auto weight = [&](int row, int col) {
      const int i = kTransposed ? col : row, b = kTransposed ? row : col;
      return i < args.q_grid.blocks && b < args.k_grid.blocks
                 ? mixing[i * args.mixing_row_stride + b]
                 : 0.f;
    };
#pragma unroll
    for (int t = 0; t < MT; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = row_tile() * 16 + lane / 4 + e % 2 * 8;
        const int col = t * 16 + lane % 4 * 2 + e / 2 * 8;
        m[t][e] = ptx::pack_bf16(weight(row, col), weight(row, col + 1));
      }
  }
  // The same for weights that all heads share, from where keep_weights left them.
  template <bool kTransposed>
  static __device__ __forceinline__ void take_weights(Weights& m, const BoxArgs& args, int item,
                                                      const Seat<X>& seat) {
    if constexpr (X::kKeepsWeights) {
      if (args.mixing_head_stride == 0) {
        const Chunk words = seat.weights[kTransposed * 32 + seat.lane];
#pragma unroll
        for (int e = 0; e < 4; ++e) m[0][e] = words.word[e];
        return;
      }
    }
    load_weights<kTransposed>(m, args, item, seat.lane);
  }
  static __device__ __forceinline__ void keep_weights(const BoxArgs& args, const Seat<X>& seat) {
    if constexpr (X::kKeepsWeights) {
      if (warp() > 1) return;
      Weights m;
      if (warp() == 0) load_weights<false>(m, args, 0, seat.lane);
      if (warp() == 1) load_weights<true>(m, args, 0, seat.lane);
      seat.weights[warp() * 32 + seat.lane] = {{m[0][0], m[0][1], m[0][2], m[0][3]}};
    }
  }

  // out = weights in, one group of entries at a time: lane 4 g + t holds chunk g of four blocks.
  static __device__ __forceinline__ void mix(const Weights& m, const byte* slices,
                                             const BoxArgs& args, const Seat<X>& seat,
                                             int out_blocks, Arrival what) {
    const int lane = seat.lane, g = lane / 4, t = lane % 4;
    const int row = row_tile() * 16 + g;
    const int groups = seat.share_groups(seat.rank);
    // Wide summaries: chunks are whole loads, and columns of the product in such an order that
    // neither these meet a bank conflict nor results leave in pieces of less than 64 bytes.
    constexpr bool kWide = X::D == 96;
    const byte* own = slices + t * 2 * X::kSlice + (kWide ? (g / 2 + g % 2 * 4) ^ g % 2 : g) * 16;
    for (int group = part(); group < groups; group += kParts) {
      Chunk out[2][2];  // [row or row + 8][chunk]
      Chunk whole[MT][4];
      if constexpr (kWide) {
#pragma unroll
        for (int b = 0; b < MT; ++b)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (b * 16 + i % 2 + i / 2 * 8) * X::kSlice;
            whole[b][i] = *reinterpret_cast<const Chunk*>(own + at + group * 128);
          }
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // four entries of the chunks
        float c[4][4] = {};
#pragma unroll
        for (int b = 0; b < MT; ++b) {
          uint2 x[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (b * 16 + i % 2 + i / 2 * 8) * X::kSlice + part * 8;
            if constexpr (kWide) {
              x[i] = make_uint2(whole[b][i].word[part * 2], whole[b][i].word[part * 2 + 1]);
            } else {
              x[i] = *reinterpret_cast<const uint2*>(own + at + group * 128);
            }
          }
          ptx::mma_bf16(c[0], m[b], low_halves(x[0].x, x[1].x), low_halves(x[2].x, x[3].x));
          ptx::mma_bf16(c[1], m[b], high_halves(x[0].x, x[1].x), high_halves(x[2].x, x[3].x));
          ptx::mma_bf16(c[2], m[b], low_halves(x[0].y, x[1].y), low_halves(x[2].y, x[3].y));
          ptx::mma_bf16(c[3], m[b], high_halves(x[0].y, x[1].y), high_halves(x[2].y, x[3].y));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          out[i / 2][i % 2].word[part * 2] = ptx::pack_bf16(c[0][i], c[1][i]);
          out[i / 2][i % 2].word[part * 2 + 1] = ptx::pack_bf16(c[2][i], c[3][i]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int block = row + half * 8;
        if (block >= out_blocks) continue;
        const int owner = (block * args.slots_inverse) >> 16;
        const int at = (seat.rank * X::kShare + group) * 128 + t * (kWide ? 16 : 32);
        const byte* place = seat.summary(block - owner * args.slots) + at;
        const std::uint32_t to = remote(ptx::shared_address(place), owner);
        const std::uint32_t barrier = remote(seat.arrival(what), owner);
        push(to, out[half][0], barrier);
        push(to + (kWide ? 64 + ((t ^ 1) - t) * 16 : 16), out[half][1], barrier);
      }
      __syncwarp();
    }
  }

  // Gradient of the weights over this slice: <left_i, right_b>. With one tile of rows the warps
  // share the entries, otherwise the columns.
  static constexpr int kColumnTiles = MT == 1 ? 2 : 2 * MT / kParts;  // of eight columns
  static constexpr int kSplits = MT == 1 ? kParts : 1;

  // Heads that share their weights are added to what the thread block has written before.
  static __device__ __forceinline__ void add_gradient(const BoxArgs& args, const Seat<X>& seat,
                                                      int item, bool first) {
    const int lane = seat.lane, g = lane / 4, t = lane % 4;
    const int col0 = MT == 1 ? 0 : part() * kColumnTiles * 8;
    const auto chunk = [&](const byte* slices, int block, int at) {
      return *reinterpret_cast<const Chunk*>(slices + block * X::kSlice + at);
    };
    float d[kColumnTiles][4] = {};
    for (int k = MT == 1 ? part() : 0; k < seat.share_groups(seat.rank) * 2; k += kSplits) {
      const int at = (k * 4 + t) * 16;
      const Chunk low = chunk(seat.gradient_slices, row_tile() * 16 + g, at);
      const Chunk high = chunk(seat.gradient_slices, row_tile() * 16 + g + 8, at);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const Chunk other = chunk(seat.slices, col0 + n * 8 + g, at);
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          const std::uint32_t a[4] = {low.word[w], high.word[w], low.word[w + 1], high.word[w + 1]};
          ptx::mma_bf16(d[n], a, other.word[w], other.word[w + 1]);
        }
      }
    }

    const int batch = item / args.heads, head = item - batch * args.heads;
    const std::int64_t place = args.per_head
                                   ? (static_cast<std::int64_t>(batch) * X::C + seat.rank) *
                                             args.heads +
                                         head
                                   : static_cast<std::int64_t>(blockIdx.x);
    float* partial = args.partial + place * (MT * 16 * MT * 16);
    const bool add = !first && !args.per_head;
    if constexpr (MT == 1) {
      // The warps' shares of the entries are added up in a fixed order.
      store_sums(seat.sums + part() * 256, d, lane, false);
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < 256; i += X::kThreads) {
        float sum = add ? partial[i] : 0.f;
#pragma unroll
        for (int s = 0; s < kSplits; ++s) sum += seat.sums[s * 256 + i];
        partial[i] = sum;
      }
    } else {
      store_sums(partial + row_tile() * 16 * MT * 16 + col0, d, lane, add);
    }
  }

 private:
  static __device__ __forceinline__ void store_sums(float* to, const float (&d)[kColumnTiles][4],
                                                    int lane, bool add) {
    float2 old[kColumnTiles][2] = {};
#pragma unroll
    for (int i = 0; i < kColumnTiles * 2; ++i) {
      if (add) old[i / 2][i % 2] = *reinterpret_cast<const float2*>(to + place(i, lane));
    }
#pragma unroll
    for (int i = 0; i < kColumnTiles * 2; ++i) {
      *reinterpret_cast<float2*>(to + place(i, lane)) = make_float2(
          old[i / 2][i % 2].x + d[i / 2][i % 2 * 2], old[i / 2][i % 2].y + d[i / 2][i % 2 * 2 + 1]);
    }
  }
  static __device__ __forceinline__ int place(int i, int lane) {
    return (lane / 4 + i % 2 * 8) * MT * 16 + i / 2 * 8 + lane % 4 * 2;
  }
};

}  // namespace mhla::cuda::sm90
