// Shared memory of the whole-head backward, and the warpgroup that fills it: two warps copy
// (cp.async, never waiting for data), two more apply the feature map to what has landed.
#pragma once

#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/dense_load.cuh"
#include "mhla/cuda/sm90/dense_whole_tile.cuh"
#include "mhla/cuda/sm90/feature_pair.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kWholeLoadThreads = 64;  // that copy, and as many that map

// Three sets of two tensors with 256 rows each. Keys and values of a head lie in one set, queries
// and output gradients in the next, and so on round the three: while a head is worked on, the third
// set takes the keys and values of the next head, and its queries follow where the keys have been
// read for the last time. Of wide heads two sets fit: the next head's tiles come where this head's
// have been read for the last time. A tile of 64 rows in a set has three barriers.
template <int D>
struct WholeShared {
  static constexpr int kSets = D <= 72 ? 3 : 2;
  static constexpr int kSetBytes = 2 * WholeTensor<D>::kBytes;
  static constexpr int kFactors = kSets * kSetBytes;  // [2 heads][256 queries] RowFactor
  static constexpr int kWeights = kFactors + 2 * kWholeRows * 8;  // [query][key slot]
  static constexpr int kWeightsByKey = kWeights + kWholeSlots * kWholeSlots * 4;  // [key][query]
  static constexpr int kSums = kWeightsByKey + kWholeSlots * kWholeSlots * 4;     // [key][query]
  static constexpr int kTable = kSums + kWholeSlots * kWholeSlots * 4;            // WholeTable
  static constexpr int kBarriers = kTable + static_cast<int>(sizeof(WholeTable));
  // A warp's 16 rows on their way to global memory, where there is room for them.
  static constexpr int kStage = (kBarriers + kSets * kWholeTiles * 24 + 127) / 128 * 128;
  using Stage = WholeTensor<D, kSlotRows>;
  static constexpr int kStageBytes = D == 72 ? 0 : Stage::kBytes;
  static constexpr int kBytes = kStage + 8 * kStageBytes;
  static_assert(kBytes <= 232448 && kBarriers % 8 == 0);

  std::uint32_t base;

  // x: what passes the feature map, k or q; z: v or d_o.
  __device__ WholeTensor<D> x(int set) const { return {base + set * kSetBytes}; }
  __device__ WholeTensor<D> z(int set) const {
    return {base + set * kSetBytes + WholeTensor<D>::kBytes};
  }
  __device__ std::uint32_t landed(int set, int tile) const {
    return base + kBarriers + (set * kWholeTiles + tile) * 24;
  }
  __device__ std::uint32_t full(int set, int tile) const { return landed(set, tile) + 8; }
  __device__ std::uint32_t empty(int set, int tile) const { return landed(set, tile) + 16; }
  __device__ Stage stage() const {  // of this computing warp
    return {base + kStage + threadIdx.x / 32 * kStageBytes};
  }
  __device__ std::uint32_t query_tokens() const { return base + kTable; }
  __device__ std::uint32_t key_tokens() const { return base + kTable + kWholeRows * 4; }
  __device__ std::uint32_t query_blocks() const { return base + kTable + 2 * kWholeRows * 4; }
  __device__ std::uint32_t key_blocks() const { return query_blocks() + kWholeSlots * 4; }
};

// Which set comes next; `parity` is that of the barrier phase a reader of the set waits for.
struct SetRing {
  int set = 0, parity = 0;
  template <int kSets>
  __device__ __forceinline__ SetRing next() const {
    return set == kSets - 1 ? SetRing{0, parity ^ 1} : SetRing{set + 1, parity};
  }
};

__device__ __forceinline__ int load_int(std::uint32_t from) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(x) : "r"(from) : "memory");
  return x;
}

__device__ __forceinline__ void load_chunk(std::uint32_t (&w)[4], std::uint32_t from) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}

template <typename T, int D>
class WholeLoader {
 public:
  __device__ WholeLoader(const WholeArgs& args, const WholeShared<D>& shared)
      : args_(args), shared_(shared), thread_(threadIdx.x % kWholeLoadThreads) {}

  __device__ void run() const {
    const bool copies = threadIdx.x / kWholeLoadThreads % 2 == 0;
    SetRing keys;
    for (int item = blockIdx.x; item < args_.items; item += gridDim.x) {
      const SetRing queries = next(keys);
#pragma unroll 1
      for (int first = 0; first < kWholeTiles; first += kTilesAtOnce) {
        if (copies) {
          copy_head(keys, queries, first, item);
        } else {
          map_set(keys, first, shared_.key_tokens());
          map_set(queries, first, shared_.query_tokens());
        }
      }
      keys = next(queries);
    }
  }

 private:
  static constexpr int kRestChunks = WholeTensor<D>::kRestChunks;
  static constexpr int kRestEvery = kRestChunks == 0 ? 1 : kRestChunks;
  static constexpr bool kThirds = kRestChunks == 4;  // see copy_thirds

  // Tiles of keys before those of queries. NOTE: with two sets the first two of queries are free
  // before the last two of keys.
  static constexpr int kTilesAtOnce = WholeShared<D>::kSets == 2 ? 2 : kWholeTiles;

  // A chunk of every row.
  struct Source {
    const T* data;
    int row_bytes;  // backward_whole refuses others
    bool inside;    // of the width

    __device__ __forceinline__ Source(const T* head, const RowTensor& tensor, int chunk, int width)
        : data(head + (chunk * 8 < width ? chunk * 8 : 0)),
          row_bytes(static_cast<int>(tensor.token_stride * 2)),
          inside(chunk * 8 < width) {}
    // NOTE: one instruction; the compiler makes seven of a product of 64 bits.
    __device__ __forceinline__ const void* row(int token) const {
      const void* at;
      asm("mad.wide.s32 %0, %1, %2, %3;\n" : "=l"(at) : "r"(token), "r"(row_bytes), "l"(data));
      return at;
    }
  };

  __device__ static __forceinline__ void load_tokens(int* to, std::uint32_t from) {
    asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }

  __device__ static SetRing next(const SetRing& ring) { return ring.next<WholeShared<D>::kSets>(); }

  __device__ void copy_head(const SetRing& keys, const SetRing& queries, int first,
                            int item) const {
    const int batch = item / args_.heads, head = item - batch * args_.heads;
    copy_set(keys, first, args_.k, args_.v, batch, head, shared_.key_tokens());
    copy_set(queries, first, args_.q, args_.d_o, batch, head, shared_.query_tokens());
  }

  __device__ void copy_set(const SetRing& ring, int first_tile, const RowTensor& x,
                           const RowTensor& z, int batch, int head, std::uint32_t tokens) const {
    if (!args_.padded && args_.dk == D && args_.dv == D) {
      copy_set<true>(ring, first_tile, x, z, batch, head, tokens);
    } else {
      copy_set<false>(ring, first_tile, x, z, batch, head, tokens);
    }
  }
  // kAll: no row is empty, and no column is past the width. NOTE: few instructions count here,
  // since the first head waits for all of them.
  template <bool kAll>
  __device__ void copy_set(const SetRing& ring, int first_tile, const RowTensor& x,
                           const RowTensor& z, int batch, int head, std::uint32_t tokens) const {
    const T *head_x = x.head<T>(batch, head), *head_z = z.head<T>(batch, head);
    const int chunk = thread_ % (kThirds ? 4 : 8);
    const Source from_x(head_x, x, chunk, args_.dk), from_z(head_z, z, chunk, args_.dv);
    const Source rest_x(head_x, x, 8, args_.dk), rest_z(head_z, z, 8, args_.dv);
    const WholeTensor<D> to_x = shared_.x(ring.set), to_z = shared_.z(ring.set);
#pragma unroll 1
    for (int tile = first_tile; tile < first_tile + kTilesAtOnce; ++tile) {
      barrier_wait(shared_.empty(ring.set, tile), ring.parity ^ 1);
      if constexpr (kThirds) {
        copy_thirds<kAll>(to_x, from_x, to_z, from_z, tile, tokens);
      } else {
        copy_rows<kAll>(to_x, from_x, to_z, from_z, tile, tokens);
      }
      if constexpr (kRestChunks == 1) {
        const int row = tile * kTile + thread_, token = load_int(tokens + row * 4);
        copy_chunk<kAll>(to_x.chunk(row, 8), rest_x, token);
        copy_chunk<kAll>(to_z.chunk(row, 8), rest_z, token);
      }
      arrive_when_copied(shared_.landed(ring.set, tile));
    }
  }

  // NOTE: a thread's rows lie together in the table, not in the tile: a warp copies four whole rows
  // at a time.
  template <bool kAll>
  __device__ __forceinline__ void copy_rows(const WholeTensor<D>& to_x, const Source& from_x,
                                            const WholeTensor<D>& to_z, const Source& from_z,
                                            int tile, std::uint32_t tokens) const {
    const int first = tile * kTile + thread_ / 8 * 8;
    int token[8];
    load_tokens(token, tokens + first * 4);
    load_tokens(token + 4, tokens + (first + 4) * 4);
    const auto copy = [&](const WholeTensor<D>& to, const Source& from) {
      const std::uint32_t row = to.at + first * 128;  // a multiple of 8
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        copy_chunk<kAll>(row + i * 128 + ((thread_ % 8 ^ i) * 16), from, token[i]);
      }
    };
    copy(to_x, from_x);
    copy(to_z, from_z);
  }
  // Rows of 12 chunks: a thread copies every fourth chunk of four rows, three with one address.
  // NOTE: eight lanes write two rows at a time, n and n ^ 5, so that they meet different banks, in
  // rows of 128 bytes (where bit 2 chooses the half of them) as in those of 64.
  template <bool kAll>
  __device__ __forceinline__ void copy_thirds(const WholeTensor<D>& to_x, const Source& from_x,
                                              const WholeTensor<D>& to_z, const Source& from_z,
                                              int tile, std::uint32_t tokens) const {
    const int half = thread_ / 4 % 2, first = tile * kTile + thread_ / 8 * 8;
    int of[4];
    load_tokens(of, tokens + (first + 4 * half) * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + (i ^ (5 * half)), token = half == 0 ? of[i] : of[i ^ 1];
      copy_row_thirds<kAll>(to_x, from_x, args_.dk, row, token);
      copy_row_thirds<kAll>(to_z, from_z, args_.dv, row, token);
    }
  }
  template <bool kAll>
  __device__ __forceinline__ void copy_row_thirds(const WholeTensor<D>& to, const Source& from,
                                                  int width, int row, int token) const {
    const int chunk = thread_ % 4;
    const T* at = static_cast<const T*>(from.row(kAll ? token : max(token, 0)));
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const bool valid = kAll || (token >= 0 && (chunk + 4 * i) * 8 < width);
      copy_async_16(to.chunk(row, chunk + 4 * i), at + (valid ? 32 * i : 0), valid);
    }
  }

  // Zeros where a row is empty and past the width.
  template <bool kAll>
  __device__ __forceinline__ void copy_chunk(std::uint32_t to, const Source& from,
                                             int token) const {
    if constexpr (kAll) {
      copy_async_16(to, from.row(token), true);
    } else {
      copy_async_16(to, from.row(max(token, 0)), token >= 0 && from.inside);
    }
  }

  // Which of the columns past 64 this thread maps: one chunk of every few rows.
  __device__ __forceinline__ int rest_chunk() const { return 8 + thread_ % kRestEvery; }
  __device__ __forceinline__ int rest_row(int i) const {
    return thread_ / 8 * 8 + (8 * i + thread_ % 8) / kRestEvery;
  }

  __device__ void map_set(const SetRing& ring, int first_tile, std::uint32_t tokens) const {
    const WholeTensor<D> x = shared_.x(ring.set);
    for (int tile = first_tile; tile < first_tile + kTilesAtOnce; ++tile) {
      barrier_wait(shared_.landed(ring.set, tile), ring.parity);
      switch (args_.feature) {
        case Feature::relu_eps: map_tile<Feature::relu_eps>(x, tile, tokens); break;
        case Feature::relu: map_tile<Feature::relu>(x, tile, tokens); break;
        case Feature::elu1: map_tile<Feature::elu1>(x, tile, tokens); break;
        case Feature::identity: break;
      }
      fence_async();
      barrier_arrive(shared_.full(ring.set, tile));
    }
  }

  // NOTE: empty rows and columns past dk stay zero, phi(0) need not be.
  template <Feature kFeature>
  __device__ void map_tile(const WholeTensor<D>& x, int tile, std::uint32_t tokens) const {
    constexpr int kBatch = 4;  // loads in flight
    const int row = tile * kTile + thread_ / 8, chunk = thread_ % 8 ^ (row % 8);
    const std::uint32_t at = x.at + tile * kTile * 128 + thread_ * 16;
#pragma unroll 1
    for (int first = 0; first < 8; first += kBatch) {
      std::uint32_t w[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) load_chunk(w[i], at + (first + i) * 1024);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        map_chunk<kFeature>(w[i], row + (first + i) * 8, chunk, tokens);
        store_chunk(at + (first + i) * 1024, w[i]);
      }
    }
    std::uint32_t w[kRestEvery][4];
#pragma unroll
    for (int i = 0; i < kRestChunks; ++i) {
      load_chunk(w[i], x.chunk(tile * kTile + rest_row(i), rest_chunk()));
    }
#pragma unroll
    for (int i = 0; i < kRestChunks; ++i) {
      const int of = tile * kTile + rest_row(i);
      map_chunk<kFeature>(w[i], of, rest_chunk(), tokens);
      store_chunk(x.chunk(of, rest_chunk()), w[i]);
    }
  }
  template <Feature kFeature>
  __device__ void map_chunk(std::uint32_t (&w)[4], int row, int chunk, std::uint32_t tokens) const {
    bool keep = chunk * 8 < args_.dk;  // dk is a multiple of 8
    if (args_.padded) keep = keep && load_int(tokens + row * 4) >= 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = keep ? feature_pair<T, kFeature>(w[j]) : 0u;
  }

  const WholeArgs& args_;
  const WholeShared<D> shared_;
  const int thread_;
};

}  // namespace mhla::cuda::sm90
