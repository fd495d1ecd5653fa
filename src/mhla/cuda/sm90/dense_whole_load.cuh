// Shared memory of the whole-head backward, and the warpgroup that fills it: two warps copy
// (cp.async, never waiting for data), two more apply the feature map to what has landed.
#pragma once

#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/dense_whole.h"
#include "mhla/cuda/sm90/feature_pair.cuh"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kWholeTiles = kWholeRows / kTile;
inline constexpr int kWholeLoadThreads = 64;  // that copy, and as many that map

// Three sets of two tensors with 256 rows each. Keys and values of a head lie in one set, queries
// and output gradients in the next, and so on round the three: while a head is worked on, the third
// set takes the keys and values of the next head, and its queries follow where the keys have been
// read for the last time. A tile of 64 rows in a set has three barriers.
template <int D>
struct WholeShared {
  static constexpr int kSets = 3;
  static constexpr int kTileBytes = kTile * D * 2, kTensorBytes = kWholeTiles * kTileBytes;
  static constexpr int kSetBytes = 2 * kTensorBytes;
  static constexpr int kFactors = kSets * kSetBytes;  // [2 heads][256 queries] RowFactor
  static constexpr int kWeights = kFactors + 2 * kWholeRows * 8;  // [query][key slot]
  static constexpr int kWeightsByKey = kWeights + kWholeSlots * kWholeSlots * 4;  // [key][query]
  static constexpr int kSums = kWeightsByKey + kWholeSlots * kWholeSlots * 4;     // [key][query]
  static constexpr int kTable = kSums + kWholeSlots * kWholeSlots * 4;            // WholeTable
  static constexpr int kBarriers = kTable + static_cast<int>(sizeof(WholeTable));
  static constexpr int kBytes = kBarriers + kSets * kWholeTiles * 24;
  static_assert(kBytes <= 232448 && kBarriers % 8 == 0);

  std::uint32_t base;

  __device__ std::uint32_t x(int set) const { return base + set * kSetBytes; }
  __device__ std::uint32_t z(int set) const { return x(set) + kTensorBytes; }
  __device__ std::uint32_t landed(int set, int tile) const {
    return base + kBarriers + (set * kWholeTiles + tile) * 24;
  }
  __device__ std::uint32_t full(int set, int tile) const { return landed(set, tile) + 8; }
  __device__ std::uint32_t empty(int set, int tile) const { return landed(set, tile) + 16; }
  __device__ std::uint32_t query_tokens() const { return base + kTable; }
  __device__ std::uint32_t key_tokens() const { return base + kTable + kWholeRows * 4; }
};

// Which set comes next; `parity` is that of the barrier phase a reader of the set waits for.
struct SetRing {
  int set = 0, parity = 0;
  __device__ __forceinline__ SetRing next() const {
    return set == 2 ? SetRing{0, parity ^ 1} : SetRing{set + 1, parity};
  }
};

__device__ __forceinline__ int load_int(std::uint32_t from) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(x) : "r"(from) : "memory");
  return x;
}

template <typename T, int D>
class WholeLoader {
 public:
  __device__ WholeLoader(const WholeArgs& args, const WholeShared<D>& shared)
      : args_(args), shared_(shared), thread_(threadIdx.x % kWholeLoadThreads) {}

  __device__ void run() const {
    const bool copies = threadIdx.x / kWholeLoadThreads % 2 == 0;
    SetRing ring;
    for (int item = blockIdx.x; item < args_.items; item += gridDim.x) {
      if (copies) {
        copy_head(ring, item);
      } else {
        map_set(ring, shared_.key_tokens());
        map_set(ring.next(), shared_.query_tokens());
      }
      ring = ring.next().next();
    }
  }

 private:
  static constexpr int kChunks = D / 8;
  using Layout = WholeShared<D>;

  // The order in which the two warpgroups take the tiles of a set.
  __device__ static int tile_at(int i) { return i % 2 * 2 + i / 2; }

  __device__ void copy_head(const SetRing& ring, int item) const {
    const int batch = item / args_.heads, head = item - batch * args_.heads;
    copy_set(ring, args_.k, args_.v, batch, head, shared_.key_tokens());
    copy_set(ring.next(), args_.q, args_.d_o, batch, head, shared_.query_tokens());
  }

  __device__ void copy_set(const SetRing& ring, const RowTensor& x, const RowTensor& z, int batch,
                           int head, std::uint32_t tokens) const {
    const T* from_x = x.head<T>(batch, head);
    const T* from_z = z.head<T>(batch, head);
    for (int i = 0; i < kWholeTiles; ++i) {
      const int tile = tile_at(i), offset = tile * Layout::kTileBytes;
      barrier_wait(shared_.empty(ring.set, tile), ring.parity ^ 1);
      copy_tile(shared_.x(ring.set) + offset, from_x, static_cast<int>(x.token_stride),
                tokens + tile * kTile * 4, args_.dk);
      copy_tile(shared_.z(ring.set) + offset, from_z, static_cast<int>(z.token_stride),
                tokens + tile * kTile * 4, args_.dv);
      arrive_when_copied(shared_.landed(ring.set, tile));
    }
  }

  // A warp takes 8 rows of 64 bytes; zeros where a row is empty and past the width.
  __device__ void copy_tile(std::uint32_t tile, const T* from, int stride, std::uint32_t tokens,
                            int width) const {
    copy_rows<8>(tile, from, stride, tokens, width, 0, thread_ / 8);
    if constexpr (kChunks == 9) {
      copy_rows<1>(tile, from, stride, tokens, width, thread_ / 8, 8);
    }
  }
  template <int kGroups>
  __device__ void copy_rows(std::uint32_t tile, const T* from, int stride, std::uint32_t tokens,
                            int width, int first_group, int chunk) const {
    const std::uint32_t row = tokens + (first_group * 8 + thread_ % 8) * 4;
    const std::uint32_t to = tile + (first_group * kChunks + chunk) * kCore + thread_ % 8 * 16;
    const bool inside = chunk * 8 < width;
    from += chunk * 8;
#pragma unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const int token = load_int(row + g * 32);
      const bool valid = inside && token >= 0;
      copy_async_16(to + g * kChunks * kCore,
                    from + (valid ? static_cast<std::int64_t>(token) * stride : 0), valid);
    }
  }

  __device__ void map_set(const SetRing& ring, std::uint32_t tokens) const {
    for (int i = 0; i < kWholeTiles; ++i) {
      const int tile = tile_at(i);
      const std::uint32_t x = shared_.x(ring.set) + tile * Layout::kTileBytes;
      const std::uint32_t rows = tokens + tile * kTile * 4;
      barrier_wait(shared_.landed(ring.set, tile), ring.parity);
      switch (args_.feature) {
        case Feature::relu_eps: map_tile<Feature::relu_eps>(x, rows); break;
        case Feature::relu: map_tile<Feature::relu>(x, rows); break;
        case Feature::elu1: map_tile<Feature::elu1>(x, rows); break;
        case Feature::identity: break;
      }
      fence_async();
      barrier_arrive(shared_.full(ring.set, tile));
    }
  }

  // NOTE: empty rows and columns past dk stay zero, phi(0) need not be.
  template <Feature kFeature>
  __device__ void map_tile(std::uint32_t tile, std::uint32_t tokens) const {
#pragma unroll 2
    for (int i = 0; i < kChunks; ++i) {
      const int unit = i * kWholeLoadThreads + thread_, chunk = unit / 8 % kChunks;
      const std::uint32_t at = tile + unit * 16;
      std::uint32_t w[4];
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(at)
                   : "memory");
      bool keep = chunk * 8 < args_.dk;  // dk is a multiple of 8
      if (args_.padded) {
        keep = keep && load_int(tokens + (unit / 8 / kChunks * 8 + unit % 8) * 4) >= 0;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = keep ? feature_pair<T, kFeature>(w[j]) : 0u;
      asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(w[0]), "r"(w[1]),
                   "r"(w[2]), "r"(w[3])
                   : "memory");
    }
  }

  const WholeArgs& args_;
  const WholeShared<D> shared_;
  const int thread_;
};

}  // namespace mhla::cuda::sm90
