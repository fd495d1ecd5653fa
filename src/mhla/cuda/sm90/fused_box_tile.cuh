// What a team of one or two warpgroups does with its tiles of 64 tokens and with summaries. Warp w
// of a warpgroup owns tokens 16 w and on, or 16 rows of a summary; first factors are in registers,
// second ones in memory. Two warpgroups share the columns of tokens, and the rows of a summary.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/barrier.cuh"
#include "mhla/cuda/sm90/fused_ptx.cuh"
#include "mhla/cuda/sm90/packed_map.cuh"
#include "mhla/cuda/sm90/store_matrix.cuh"
#include "mhla/cuda/sm90/wgmma.cuh"

namespace mhla::cuda::sm90 {

using byte = unsigned char;

// What a thread block's barriers count, in the order of the steps.
enum class Arrival { summaries, mixed, gradients, mixed_gradients };

// A thread's place, and the memory of its thread block.
template <typename X>
struct Seat {
  int lane, warp, group;  // warp: of four; group: team
  int rank;               // thread block of the cluster
  byte *tiles, *summaries, *slices, *gradient_slices;
  byte* scalars = nullptr;
  float* sums = nullptr;
  Chunk* weights = nullptr;  // [way][lane]
  byte* own = nullptr;       // shared_position, backward: z, then dz, of the thread block's blocks
  std::uint32_t barriers;    // of the team, one per stage
  std::uint32_t arrivals;

  __device__ __forceinline__ Seat(byte* shared, bool backward, const BoxArgs& args)
      : lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(threadIdx.x / 32 % 4)),
        group(static_cast<int>(threadIdx.x / X::kTeam)),
        rank(cluster_rank()),
        tiles(shared + group * X::kTiles * X::kTile),
        summaries(shared + (X::kInPlace ? 0 : X::tiles_bytes())),
        slices(shared + X::tiles_bytes() + X::summaries_bytes(args.slots)) {
    gradient_slices = slices + X::kSlices;
    byte* all = gradient_slices;
    if (backward) {
      scalars = gradient_slices + X::kSlices + group * 256;
      sums = reinterpret_cast<float*>(gradient_slices + X::kSlices + X::kScalars);
      all += X::kSlices + X::kScalars + X::kSums;
    }
    weights = reinterpret_cast<Chunk*>(all);
    all += X::kWeights;
    own = all + X::kBarriers;
    barriers = ptx::shared_address(all + group * X::kStages * 8);
    arrivals = ptx::shared_address(all + X::W * X::kStages * 8);
    if (threadIdx.x == 0) {
      for (int i = 0; i < X::W * X::kStages + 4; ++i) {
        barrier_init(ptx::shared_address(all + i * 8), 1);
      }
      for (int i = 0; i < 4; ++i) {
        const Arrival what = static_cast<Arrival>(i);
        const int bytes = arrival_bytes(what, args);
        if (bytes > 0) barrier_expect(arrival(what), bytes);
      }
      fence_barriers();
    }
  }
  __device__ __forceinline__ bool leads() const { return threadIdx.x % X::kTeam == 0; }
  __device__ __forceinline__ void sync() const { ptx::sync_warps(1 + group, X::kTeam); }
  // Warpgroup of the team.
  __device__ __forceinline__ int member() const {
    return X::T == 1 ? 0 : static_cast<int>(threadIdx.x / 128 % X::T);
  }
  __device__ __forceinline__ byte* summary(int slot) const {
    return summaries + slot * X::kSummaryStride;
  }
  __device__ __forceinline__ byte* own_sums(int slot) const { return own + slot * X::kOwnSums; }
  __device__ __forceinline__ int own_blocks(const BoxGrid& grid, const BoxArgs& args) const {
    return max(0, min(args.slots, grid.blocks - rank * args.slots));
  }
  // Every W-th of them is the team's.
  __device__ __forceinline__ int group_blocks(const BoxGrid& grid, const BoxArgs& args) const {
    return max(0, own_blocks(grid, args) - group + X::W - 1) / X::W;
  }
  // Groups of a summary that a thread block mixes.
  static __device__ __forceinline__ int share_groups(int rank) {
    return max(0, min(X::kShare, X::kGroups - rank * X::kShare));
  }

  // [64 rows] of a warpgroup of the team. NOTE: in the place of the sums: whoever is past the
  // cluster's meeting of this head knows that all are done with those of the head before.
  __device__ __forceinline__ float2* parts(int member) const {
    return reinterpret_cast<float2*>(sums) + (group * X::T + member) * kBoxTokens;
  }
  // The n-th pair of tiles of the team.
  __device__ __forceinline__ byte* tile(int n, int which) const {
    return tiles + (n % X::kStages * 2 + which) * X::kTile;
  }
  __device__ __forceinline__ std::uint32_t barrier(int n) const {
    return barriers + n % X::kStages * 8;
  }
  __device__ __forceinline__ void await(int n) const {
    barrier_wait(barrier(n), n / X::kStages % 2);
  }
  __device__ __forceinline__ std::uint32_t arrival(Arrival what) const {
    return arrivals + static_cast<int>(what) * 8;
  }
  // What other thread blocks send this one for every head.
  __device__ __forceinline__ int arrival_bytes(Arrival what, const BoxArgs& args) const {
    const BoxGrid& grid = what == Arrival::summaries || what == Arrival::mixed_gradients
                              ? args.k_grid
                              : args.q_grid;
    const bool slices = what == Arrival::summaries || what == Arrival::gradients;
    return (slices ? grid.blocks * share_groups(rank) : own_blocks(grid, args) * X::kGroups) * 128;
  }
  // Waits for it, and gets ready for that of the next head.
  __device__ __forceinline__ void await(Arrival what, int turn, const BoxArgs& args) const {
    const int bytes = arrival_bytes(what, args);
    if (bytes == 0) return;
    barrier_wait(arrival(what), turn % 2);
    if (threadIdx.x == 0) barrier_expect(arrival(what), bytes);
    __syncwarp();
  }

  // Sends a finished summary of the team to the thread blocks that mix it, a slice to each.
  // NOTE: all warps must have passed fence_async and sync after they wrote it.
  __device__ __forceinline__ void distribute(int slot, const BoxArgs& args, const byte* to,
                                             Arrival what) const {
    // NOTE: compute-sanitizer takes a bulk copy to the own thread block for an error.
    const auto copy_own = [&](std::uint32_t place, int first, int step) {
      const byte* own_slice = summary(slot) + rank * X::kShare * 128;
      const std::uint32_t own_place = remote(place, rank), barrier = remote(arrival(what), rank);
      for (int i = first; i < share_groups(rank) * 8; i += step) {
        push(own_place + i * 16, *reinterpret_cast<const Chunk*>(own_slice + i * 16), barrier);
      }
    };
    const auto place = [&] {
      return ptx::shared_address(to) + (rank * args.slots + slot) * X::kSlice;
    };
    if (warp == 0 && member() == 0) {
      const std::uint32_t at = place();
      if (lane < X::C && lane != rank && share_groups(lane) > 0) {
        const std::uint32_t from = ptx::shared_address(summary(slot)) + lane * X::kShare * 128;
        push(remote(at, lane), from, share_groups(lane) * 128, remote(arrival(what), lane));
      }
      if constexpr (X::D < 96) copy_own(at, lane, 32);
    }
    // Of wide summaries that is more than one warp should do while the others wait for it.
    if constexpr (X::D == 96) {
      copy_own(place(), static_cast<int>(threadIdx.x) % X::kTeam, X::kTeam);
    }
    __syncwarp();
  }
};

// Shared-memory addresses of a thread block in a cluster carry its rank in their upper bits, which
// an operand has no room for.
__device__ __forceinline__ std::uint32_t operand_address(const byte* p) {
  return ptx::shared_address(p) & 0x3ffffu;
}

__device__ __forceinline__ BoxPlace place_of(const BoxGrid& grid, int block, int item, int heads) {
  const int line = (block * grid.across_inverse) >> 16, batch = item / heads;
  return {(block - line * grid.across) * grid.width, line * grid.height, item - batch * heads,
          batch};
}

// Given factors, or gradients, of this thread's two rows of a box.
template <typename X>
__device__ __forceinline__ void load_given(float (&given)[2], const float* from,
                                           const BoxArgs& args, const Seat<X>& seat,
                                           const BoxPlace& at) {
  const BoxGrid& grid = args.q_grid;
  const float* of_head = from + static_cast<std::int64_t>(at.batch * args.heads + at.head) *
                                    args.row_stride;
  const int shift = 31 - __clz(grid.width);  // it divides 64
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = seat.warp * 16 + seat.lane / 4 + half * 8, line = row >> shift;
    given[half] = __ldg(of_head + (at.y + line) * grid.across * grid.width + at.x + row -
                        (line << shift));
  }
}

#define MHLA_R6 MHLA_R5 ",%20,%21,%22,%23"
#define MHLA_D6(C) MHLA_D5(C), MHLA_G(C, 20)
// d[64 x 48] = or += a[64 x 16] b[16 x 48] in bf16.
template <bool kTokensInner, bool kAccumulate>
__device__ __forceinline__ void wgmma_48(float (&d)[24], const std::uint32_t (&a)[4],
                                         const Operand& b) {
  if constexpr (kAccumulate) {
    MHLA_WGMMA_ASM(48, 6, "bf16", MHLA_INOUT, 1, 24, 25, 26, 27, 28, 29, 30, 31);
  } else {
    MHLA_WGMMA_ASM(48, 6, "bf16", MHLA_OUT, 0, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}

template <typename X>
struct BoxTile {
  static constexpr int D = X::D, kChunks = D / 8, kSteps = D / 16;
  // Columns of tokens that are a warpgroup's.
  static constexpr int kOwn = D / X::T, kOwnChunks = kOwn / 8, kOwnSteps = kOwn / 16;
  static constexpr int kOwnWords = kOwn / 4;
  using Rows = std::uint32_t[kSteps][4];  // 64 tokens: 16 columns a step
  using OwnRows = std::uint32_t[kOwnSteps][4];
  using OwnSum = float[kOwn / 2];       // 64 tokens, own columns
  using Columns = std::uint32_t[4][4];  // 64 columns (32: twice): 16 tokens a step
  using Sum = float[D / 2];             // 64 rows of a summary, D columns
  using Words = std::uint32_t[D / 4];
  using KeySums = std::uint32_t[kOwnChunks];

  // The copy engine swizzles: chunk c of row r lies at c ^ r % 8 (rows of 128 bytes) or
  // c ^ r / 2 % 4 (64 bytes). All rows here have row % 8 == lane % 8.
  static __device__ __forceinline__ int place(int lane, int row, int chunk) {
    constexpr int kRow = X::kPanelColumns / 8;  // chunks
    const int swizzle = kRow == 8 ? lane % 8 : lane % 8 / 2;
    if constexpr (X::kPanels == 1) return row * D * 2 + (chunk ^ swizzle) * 16;
    return chunk / kRow * X::kPanel + row * X::kPanelColumns * 2 + (chunk % kRow ^ swizzle) * 16;
  }
  static __device__ __forceinline__ void load_rows(Rows& a, const Seat<X>& seat, const byte* tile) {
    load_steps(a, seat, tile, 0);
  }
  static __device__ __forceinline__ void load_own_rows(OwnRows& a, const Seat<X>& seat,
                                                       const byte* tile) {
    load_steps(a, seat, tile, seat.member() * kOwnSteps);
  }
  // The own columns of rows that were loaded.
  static __device__ __forceinline__ void pick_own(OwnRows& own, const Rows& all,
                                                  const Seat<X>& seat) {
#pragma unroll
    for (int s = 0; s < kOwnSteps; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        own[s][i] = seat.member() == 0 ? all[s][i] : all[kSteps - kOwnSteps + s][i];
      }
  }
  // Rows of a summary come in bands of 16. A warpgroup multiplies four of them, and of 96 rows
  // those from the first or from the third on: two are done twice, and so are both of 32.
  static constexpr int kParts = D == 96 && X::T == 1 ? 2 : 1;  // one after another
  static __device__ __forceinline__ int band(const Seat<X>& seat, int part) {
    if constexpr (D == 96) return seat.warp + 2 * (X::T == 1 ? part : seat.member());
    return seat.warp % kSteps;
  }
  static __device__ __forceinline__ bool is_repeated(const Seat<X>& seat, int part) {
    if constexpr (D == 96) return seat.warp < 2 && (X::T == 1 ? part : seat.member()) > 0;
    return seat.warp >= kSteps;
  }
  static __device__ __forceinline__ void load_columns(Columns& a, const Seat<X>& seat,
                                                      const byte* tile, int part = 0) {
    const int lane = seat.lane, chunk = band(seat, part) * 2 + lane / 8 % 2;
    const byte* at = tile + place(lane, lane % 8 + lane / 16 * 8, chunk);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      ptx::load_matrix_transposed(a[s], at + s * 16 * X::kPanelColumns * 2);
    }
  }
  // The own columns. Words of rows r and r + 8 alternate, chunk by chunk.
  static __device__ __forceinline__ void store_rows(byte* tile, const Seat<X>& seat,
                                                    const std::uint32_t (&w)[kOwnWords]) {
    const int lane = seat.lane, row = seat.warp * 16 + lane % 16;
    const int first = seat.member() * kOwnChunks;
#pragma unroll
    for (int j = 0; j < kOwnChunks; j += 2) {
      ptx::store_matrix(tile + place(lane, row, first + j + lane / 16), w[2 * j], w[2 * j + 1],
                        w[2 * j + 2], w[2 * j + 3]);
    }
  }

  static __device__ __forceinline__ void pack(Words& words, const Sum& sum) {
#pragma unroll
    for (int w = 0; w < D / 4; ++w) words[w] = ptx::pack_bf16(sum[2 * w], sum[2 * w + 1]);
  }
  // 64 sums of rows in a summary's place, and of z; the sums of z are equal along a row.
  static __device__ __forceinline__ void store_summary(byte* summary, const Seat<X>& seat,
                                                       const Words& words, float z0, float z1,
                                                       int part = 0) {
    const int lane = seat.lane;
    const int half = lane / 8 % 2, next = lane / 16;
    byte* at = summary + ((2 * band(seat, part) + half) * kChunks + next) * kCore + lane % 8 * 16;
    if (D != 96 || !is_repeated(seat, part)) {
#pragma unroll
      for (int j = 0; j < kChunks; j += 2) {
        if (D == 32 && j / 2 != seat.warp / 2) continue;  // two warps hold the same rows
        const std::uint32_t* w = words + 2 * j;
        ptx::store_matrix(at + j * kCore, w[0], w[1], w[2], w[3]);
      }
    }
    store_key_sums(summary + X::kKeySums, seat, z0, z1, part);
  }
  static __device__ __forceinline__ void store_key_sums(byte* sums, const Seat<X>& seat, float z0,
                                                        float z1, int part = 0) {
    if (seat.lane % 4 != 0 || is_repeated(seat, part)) return;
    bf16* z = reinterpret_cast<bf16*>(sums) + band(seat, part) * 16 + seat.lane / 4;
    z[0] = from_float<bf16>(z0);
    z[8] = from_float<bf16>(z1);
  }
  // Entry of z for column w / 2 * 8 + ... of a pair: word w / 2, half i.
  static __device__ __forceinline__ float key_sum(const KeySums& z, int w, int i) {
    return __uint_as_float(i == 0 ? z[w / 2] << 16 : z[w / 2] & 0xffff0000u);
  }
  // Entries of z that go with a thread's own columns: two a chunk.
  static __device__ __forceinline__ void load_key_sums(KeySums& z, const byte* sums,
                                                       const Seat<X>& seat) {
    const byte* at = sums + seat.member() * kOwn * 2 + seat.lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < kOwnChunks; ++j) {
      z[j] = *reinterpret_cast<const std::uint32_t*>(at + j * 16);
    }
  }
  // den[0] and den[2] = rows times z, over the own columns.
  static __device__ __forceinline__ void denominators(float (&den)[4], const OwnRows& a,
                                                      const KeySums& z) {
#pragma unroll
    for (int s = 0; s < kOwnSteps; ++s) ptx::mma_bf16(den, a[s], z[2 * s], z[2 * s + 1]);
  }

  // sum = columns^T tile: tokens are summed over.
  static __device__ __forceinline__ void multiply_tile(Sum& sum, const Columns& a,
                                                       const byte* tile) {
    // Bytes of eight rows, which the swizzle permutes.
    constexpr int kAtom = 8 * X::kPanelColumns * 2;
    constexpr int kNext = X::kPanels == 1 ? kAtom : X::kPanel;  // more columns
    constexpr std::uint32_t kSwizzled = X::kPanelColumns == 64 ? 1u << 30 : 2u << 30;
    const auto tokens = [&](int step) {
      Operand b = operand(operand_address(tile), step * 2 * kAtom, kNext, kAtom);
      b.high |= kSwizzled;
      return b;
    };
    wgmma<bf16, D, true, false>(sum, a[0], tokens(0));
#pragma unroll
    for (int s = 1; s < 4; ++s) wgmma<bf16, D, true, true>(sum, a[s], tokens(s));
  }
  // sum = own columns of rows S, or rows S^T.
  template <bool kTransposed>
  static __device__ __forceinline__ void multiply_summary(OwnSum& sum, const Rows& a,
                                                          const byte* summary,
                                                          const Seat<X>& seat) {
    std::uint32_t at = operand_address(summary);
    at += static_cast<std::uint32_t>(seat.member()) * kOwnChunks * kCore *
          (kTransposed ? kChunks : 1);
    const auto b = [&](int step) {
      return kTransposed ? columns_inner<kChunks>(at, step) : tokens_inner<kChunks>(at, step);
    };
    if constexpr (kOwn == 48) {
      wgmma_48<!kTransposed, false>(sum, a[0], b(0));
#pragma unroll
      for (int s = 1; s < kSteps; ++s) wgmma_48<!kTransposed, true>(sum, a[s], b(s));
    } else {
      wgmma<bf16, kOwn, !kTransposed, false>(sum, a[0], b(0));
#pragma unroll
      for (int s = 1; s < kSteps; ++s) wgmma<bf16, kOwn, !kTransposed, true>(sum, a[s], b(s));
    }
  }

 private:
  template <int kCount>
  static __device__ __forceinline__ void load_steps(std::uint32_t (&a)[kCount][4],
                                                    const Seat<X>& seat, const byte* tile,
                                                    int first) {
    const int lane = seat.lane;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      ptx::load_matrix(a[s],
                       tile + place(lane, seat.warp * 16 + lane % 16, 2 * (first + s) + lane / 16));
    }
  }
};

// S_b = phi(k)^T v and z_b (Eq. 3) from one pair of tiles.
template <typename X>
__device__ __forceinline__ void summarize(const Seat<X>& seat, const PackedMap& map,
                                          const byte* k_tile, const byte* v_tile, byte* summary) {
  using T = BoxTile<X>;
  typename T::Words words[T::kParts];
  float z[T::kParts][4] = {};
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    typename T::Columns k;
    T::load_columns(k, seat, k_tile, part);
    map.apply(k);
    const auto add_keys = [&] {
#pragma unroll
      for (int s = 0; s < 4; ++s) ptx::mma_bf16(z[part], k[s], 0x3f803f80u, 0x3f803f80u);
    };
    if constexpr (!X::kOverlaps) add_keys();
    typename T::Sum sum;
    wgmma_fence();
    T::multiply_tile(sum, k, v_tile);
    wgmma_commit();
    if constexpr (X::kOverlaps) add_keys();
    wgmma_wait<0>();
    T::pack(words[part], sum);
  }
  if constexpr (X::kInPlace) seat.sync();  // all have read the tiles
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    T::store_summary(summary, seat, words[part], z[part][0], z[part][2], part);
  }
}

// The row factor of the normaliser (Eq. 4): scale over the denominator.
__device__ __forceinline__ float row_factor(const BoxArgs& args, float den) {
  if (!args.normalize) return args.scale;
  const float total = args.scale * den + args.eps;
  return total == 0.f ? 0.f : args.scale / total;
}

}  // namespace mhla::cuda::sm90
