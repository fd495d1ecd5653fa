// The shared_position normaliser inside the short forward: the warps that map keys also sum them by
// block, multiply every query with the sum of its own block, and mix these products into the row
// factors of a head, a head ahead of the warps that divide by them.
#pragma once

#include "mhla/cuda/sm90/dense_short_load.cuh"

namespace mhla::cuda::sm90 {

template <typename T, int D, bool kPairs>
class ShortRowFactors {
 public:
  using Shared = ShortShared<D, kPairs, true>;

  // Reads start here, ahead of the copies: behind those they would wait long.
  __device__ __forceinline__ ShortRowFactors(const ShortArgs& args, const Shared& shared)
      : args_(args), shared_(shared) {
    const DenseArgs& dense = args.dense;
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const int at = thread() + n * kThreads;
      const int block = at / list_stride(), p = at - block * list_stride();
      const bool exists = at >= 0 && block < dense.row_blocks && p < args.positions;
      token_[n] = exists ? __ldg(args.tokens + block * args.positions + p) : -1;
    }
#pragma unroll
    for (int n = 0; n < kWeights; ++n) {
      const int at = thread() + n * kThreads, i = at / kShortBlocks, j = at % kShortBlocks;
      const bool seen = at >= 0 && i < dense.row_blocks && j < dense.row_blocks &&
                        (dense.seen == Seen::all || j <= i);
      weight_[n] = seen ? __ldg(dense.mixing + i * dense.mixing_row_stride +
                                j * dense.mixing_column_stride)
                        : 0.f;
    }
  }

  template <typename Map>
  __device__ void run(const Map& map) const {
    write_tables();
    for (ShortWork work(args_); !work.done(); work.next()) {
      sum_keys(work, map);
      sync();
      for (int tile = 0; tile < work.tiles(); ++tile) multiply_queries(work, tile, map);
      sync();
      mix(work.half / 2);
    }
  }

 private:
  static constexpr int kThreads = 32 * kMapWarps, kMain = main_columns(D), kRest = D - kMain;
  static constexpr int kChunks = D / 8;
  static_assert(kMain == 64 && (kRest == 0 || kRest == 8));
  static constexpr ShortRowsPlan kRows = Shared::kPlan.rows;
  static constexpr int kTokens = (kShortProducts + kThreads - 1) / kThreads;
  static constexpr int kWeights = (kShortBlocks * kShortBlocks + kThreads - 1) / kThreads;

  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x) - (kShortThreads - kThreads);
  }
  __device__ __forceinline__ static int warp() { return thread() / 32; }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ static void sync() { ptx::sync_warps(2, kThreads); }
  __device__ __forceinline__ int stride() const { return args_.positions | 1; }
  __device__ __forceinline__ int list_stride() const { return (args_.positions + 7) / 8 * 8; }

  // Tokens by block and position, block and position by token, weights; products that no token
  // makes stay zero.
  __device__ __forceinline__ void write_tables() const {
    for (int n = thread(); n < kShortProducts; n += kThreads) {
      store_float(shared_.base + kRows.products + 4 * n, 0.f);
    }
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const int at = thread() + n * kThreads, block = at / list_stride();
      if (at >= kShortProducts) break;
      store_half(shared_.base + kRows.tokens + 2 * at, token_[n]);
      if (token_[n] >= 0) {
        store_half(shared_.base + kRows.places + 2 * token_[n],
                   block << 8 | (at - block * list_stride()));
      }
    }
#pragma unroll
    for (int n = 0; n < kWeights; ++n) {
      const int at = thread() + n * kThreads;
      if (at < kShortBlocks * kShortBlocks) {
        store_float(shared_.base + kRows.mixing + 4 * at, weight_[n]);
      }
    }
    sync();
  }

  // phi(k) in place, and z: a thread sums eight columns of a block, so that nothing is exchanged.
  // NOTE: beside products a load from shared memory takes hundreds of cycles; what counts is how
  // many are in flight.
  template <typename Map>
  __device__ __forceinline__ void sum_keys(const ShortWork& work, const Map& map) const {
    const auto a = shared_.k(work.half), b = shared_.k(work.half + 1);
    barrier_wait(a.landed, a.parity);
    barrier_wait(b.landed, b.parity);
    for (int task = thread(); task < args_.dense.row_blocks * kChunks; task += kThreads) {
      const int block = task / kChunks, chunk = task - block * kChunks;
      const std::uint32_t list = shared_.base + kRows.tokens + 2 * block * list_stride();
      float z[8] = {};
      for (int first = 0; first < args_.positions; first += 8) {
        std::uint32_t tokens[4];
        load(tokens, list + 2 * first);
#pragma unroll
        for (int part = 0; part < 8; part += 4) {
          std::uint32_t at[4], w[4][4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = part + i;
            const int token = static_cast<short>(tokens[n / 2] >> (n % 2 * 16));
            at[i] = token < 0 ? list  // anything, without a branch
                              : key_chunk(token < kHalf ? a.at : b.at, token % kHalf, chunk);
            load(w[i], at[i]);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) map_and_add(z, w[i], at[i], at[i] != list, map);
        }
      }
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (chunk * 8 + c >= args_.dense.dk) z[c] = 0.f;
      }
      store_4(sums(block) + chunk * 32, z[0], z[1], z[2], z[3]);
      store_4(sums(block) + chunk * 32 + 16, z[4], z[5], z[6], z[7]);
    }
    fence_async();
    __syncwarp();
    warp_arrive(a.full);
    warp_arrive(b.full);
  }

  // phi(q) . z of the query's block, by block and position: a row a lane. Groups of 32 rows go
  // round the warps; all of them hand every tile back.
  template <typename Map>
  __device__ __forceinline__ void multiply_queries(const ShortWork& work, int tile,
                                                   const Map& map) const {
    const auto buffer = shared_.q(work.tile + tile);
    buffer.wait_full();
#pragma unroll 1
    for (int group = 0; group < kTile / 32; ++group) {
      if ((tile * (kTile / 32) + group) % kMapWarps != warp()) continue;
      const int row = group * 32 + lane(), token = tile * kTile + row;
      const int place = load_half(shared_.base + kRows.places + 2 * min(token, args_.queries - 1));
      const std::uint32_t z = sums(place >> 8);
      float sum = 0.f;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        std::uint32_t w[4];
        load(w, chunk < kMain / 8 ? buffer.at + SwizzledTile<kMain>::chunk(row, chunk)
                                  : buffer.at + kTile * kMain * 2 + row * 16);
        sum += dot(w, z + chunk * 32, map);
      }
      if (token < args_.queries) {
        store_float(shared_.base + kRows.products + 4 * ((place >> 8) * stride() + (place & 255)),
                    sum);
      }
    }
    // NOTE: what was stored above needed all that was loaded, so that this cannot overtake it.
    __syncwarp();
    warp_arrive(buffer.empty);
  }

  // Row factors; head: how many there were before.
  __device__ __forceinline__ void mix(int head) const {
    const auto buffer = shared_.factors(head);
    buffer.wait_empty();
    for (int token = thread(); token < args_.queries; token += kThreads) {
      const int place = load_half(shared_.base + kRows.places + 2 * token);
      const std::uint32_t m = shared_.base + kRows.mixing + (place >> 8) * kShortBlocks * 4;
      const std::uint32_t from = shared_.base + kRows.products + 4 * (place & 255);
      float4 w[kShortBlocks / 4];
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < kShortBlocks / 4; ++j) w[j] = load_4(m + 16 * j);
#pragma unroll
      for (int j = 0; j < kShortBlocks; ++j) {  // weights past the last block are zero
        const float weight = j % 4 == 0   ? w[j / 4].x
                             : j % 4 == 1 ? w[j / 4].y
                             : j % 4 == 2 ? w[j / 4].z
                                          : w[j / 4].w;
        const int n = min(j, args_.dense.row_blocks - 1);
        sum = fmaf(weight, load_float(from + 4 * n * stride()), sum);
      }
      const float total = args_.dense.scale * sum + args_.dense.eps;
      store_float(buffer.at + 4 * token, total == 0.f ? 0.f : args_.dense.scale / total);
    }
    __syncwarp();
    warp_arrive(buffer.full);
  }

  __device__ __forceinline__ std::uint32_t sums(int block) const {
    return shared_.base + kRows.sums + block * (D + 4) * 4;
  }
  __device__ __forceinline__ static std::uint32_t key_chunk(std::uint32_t half, int row,
                                                            int chunk) {
    return half + (chunk < kMain / 8 ? SwizzledTile<kMain>::chunk(row, chunk)
                                     : kHalf * kMain * 2 + row * 16);
  }
  template <typename Map>
  __device__ __forceinline__ static void map_and_add(float (&z)[8], std::uint32_t (&w)[4],
                                                     std::uint32_t at, bool exists,
                                                     const Map& map) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = exists ? map(w[i]) : 0u;
      const float2 pair = unpack_pair<T>(w[i]);
      z[2 * i] += pair.x;
      z[2 * i + 1] += pair.y;
    }
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.v4.u32 [%1], {%2,%3,%4,%5};\n}\n" ::
            "r"(exists ? 1 : 0),
        "r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
        : "memory");
  }
  template <typename Map>
  __device__ __forceinline__ static float dot(const std::uint32_t (&w)[4], std::uint32_t from,
                                              const Map& map) {
    const float4 a = load_4(from), b = load_4(from + 16);
    const float z[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_pair<T>(map(w[i]));
      sum = fmaf(pair.x, z[2 * i], fmaf(pair.y, z[2 * i + 1], sum));
    }
    return sum;
  }
  __device__ __forceinline__ static void store_4(std::uint32_t to, float x, float y, float z,
                                                 float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
  }
  __device__ __forceinline__ static void load(std::uint32_t (&w)[4], std::uint32_t from) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
  }
  __device__ __forceinline__ static float4 load_4(std::uint32_t from) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
  }
  __device__ __forceinline__ static void store_half(std::uint32_t to, int x) {
    asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(to), "h"(static_cast<short>(x)) : "memory");
  }
  __device__ __forceinline__ static int load_half(std::uint32_t from) {
    short x;
    asm volatile("ld.shared.s16 %0, [%1];\n" : "=h"(x) : "r"(from) : "memory");
    return x;
  }

  const ShortArgs& args_;
  const Shared& shared_;
  int token_[kTokens];
  float weight_[kWeights];
};

}  // namespace mhla::cuda::sm90
