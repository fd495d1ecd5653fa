// Summaries of the causal forward by columns, as the eight warps that make and mix them see them.
//
// A warp owns 16 rows of dk of every part: 16 x 64 numbers of bf16, 2 KB of each slot. Nobody else
// reads or writes them but the products of S~ with q, so that mixing needs no barrier.
#pragma once

#include "mhla/cuda/sm90/causal_columns.h"
#include "mhla/cuda/sm90/causal_tile.cuh"

namespace mhla::cuda::sm90 {

// A warp's rows of all slots. The chunks of 16 bytes of a row are swizzled as operands of `wgmma`
// are; in what is only mixed also by the number of the slot, so that chunks of one place in eight
// slots lie in different banks.
struct ColumnRows {
  std::uint32_t base;   // of the warp's rows of slot 0
  std::uint32_t place;  // of the lane's chunk in matrices of 8 x 8: row l % 16, chunk l / 16
  std::uint32_t two;    // of its chunk in matrices of slots 0 and 1, see mixed_two

  __device__ __forceinline__ ColumnRows(std::uint32_t rows, int lane)
      : base(rows),
        place(Box::chunk(lane % 16, lane / 16)),
        two(rows + lane / 8 % 2 * ColumnsPlan::kSlot +
            Box::chunk(lane % 8 + lane / 16 * 8, lane / 8 % 2)) {}
  // `group` is the even one of two groups of 8 columns.
  __device__ __forceinline__ std::uint32_t operand(int slot, int group) const {
    return base + slot * ColumnsPlan::kSlot + (place ^ group * 16);
  }
  __device__ __forceinline__ std::uint32_t mixed(int slot, int group) const {
    return base + slot * ColumnsPlan::kSlot + (place ^ (group ^ slot) * 16);
  }
  // Matrices of an even slot and of the one after it in turn: 8 rows of both, then the other 8.
  __device__ __forceinline__ std::uint32_t mixed_two(int slot, int group) const {
    return (two + slot * ColumnsPlan::kSlot) ^ ((group ^ slot) * 16);
  }
};

using ColumnSums = float[kColumnsWidth / 2];  // a warp's rows as an accumulator has them

// Rows as an accumulator has them, rounded.
__device__ __forceinline__ void store_operand(const ColumnRows& rows, int slot,
                                              const ColumnSums& d) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) store_groups(rows.operand(slot, g), d + g * 4);
}
// The same rounded, for a slot that is only mixed
struct RoundedRows {
  std::uint32_t words[kColumnsWidth / 4];

  __device__ __forceinline__ void round(const ColumnSums& d) {
#pragma unroll
    for (int i = 0; i < kColumnsWidth / 4; ++i) {
      words[i] = ptx::pack_bf16(d[2 * i], d[2 * i + 1]);
    }
  }
  __device__ __forceinline__ void store(const ColumnRows& rows, int slot) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(
                       rows.mixed(slot, 2 * i)),
                   "r"(words[4 * i]), "r"(words[4 * i + 1]), "r"(words[4 * i + 2]),
                   "r"(words[4 * i + 3])
                   : "memory");
    }
  }
};
// A weight on the diagonal of a quarter of a first factor, so that a product adds rows of a slot as
// they lie.
struct Diagonal {
  std::uint32_t mask;  // of the lane's words that are on it

  __device__ __forceinline__ Diagonal() {
    const int row = static_cast<int>(threadIdx.x % 32 / 4), column = threadIdx.x % 4 * 2;
    mask = row == column ? 0xffffu : row == column + 1 ? 0xffff0000u : 0u;
  }
  __device__ __forceinline__ std::uint32_t factor(float weight) const {
    return ptx::pack_bf16(weight, weight) & mask;
  }
};
// Rows of a slot as they are, as sums to start from.
__device__ __forceinline__ void load_mixed(const ColumnRows& rows, int slot, ColumnSums& d) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) {
    std::uint32_t r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(rows.mixed(slot, g))
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[g * 4 + 2 * i] = __uint_as_float(r[i] << 16);
      d[g * 4 + 2 * i + 1] = __uint_as_float(r[i] & 0xffff0000u);
    }
  }
}
// Summaries in an even slot and the one after it to two sums. A product does this for 8 rows and 8
// columns: its first factor has the weights of the two sums (its upper and its lower half) with the
// two slots on the diagonals of its quarters.
__device__ __forceinline__ void add_mixed(const ColumnRows& rows, int slot,
                                          const std::uint32_t (&factors)[4], ColumnSums (&d)[2]) {
  constexpr int kGroups = kColumnsWidth / 8, kAhead = 4;
  std::uint32_t r[kAhead][4];  // of 8 rows, then of the other 8
  const auto load = [&](int group) {
    std::uint32_t (&to)[4] = r[group % kAhead];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(rows.mixed_two(slot, group))
                 : "memory");
  };
#pragma unroll
  for (int g = 0; g < kAhead; ++g) load(g);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = g * 4 + half * 2;
      float c[4] = {d[0][i], d[0][i + 1], d[1][i], d[1][i + 1]};
      ptx::mma_bf16(c, factors, r[g % kAhead][2 * half], r[g % kAhead][2 * half + 1]);
      d[0][i] = c[0], d[0][i + 1] = c[1], d[1][i] = c[2], d[1][i + 1] = c[3];
    }
    if (g + kAhead < kGroups) load(g + kAhead);
  }
}

// The mixing matrix of a head, times the scale; zero for rows that do not exist.
struct ColumnWeights {
  const float* at;
  std::int64_t row_stride, column_stride;
  float scale;
  int blocks;

  __device__ __forceinline__ ColumnWeights(const ColumnsArgs& args, int head)
      : at(args.mixing + head * args.mixing_head_stride),
        row_stride(args.mixing_row_stride),
        column_stride(args.mixing_column_stride),
        scale(args.scale),
        blocks(args.blocks) {}
  // NOTE: asked for in any case, so that several loads are on their way together.
  __device__ __forceinline__ float one(int row, int column) const {
    const float weight = __ldg(at + min(row, blocks - 1) * row_stride +
                               min(column, blocks - 1) * column_stride);
    return row < blocks ? weight * scale : 0.f;
  }
};

// The weights of a group's blocks with one another, [column][row]; each warp has its own copy.
struct NearWeights {
  std::uint32_t base;

  // Two of the 64 a lane, of blocks `first` and on.
  static __device__ __forceinline__ float2 ask(const ColumnWeights& weights, int first) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = first + lane % kColumnsGroup, column = first + lane / kColumnsGroup;
    return {weights.one(row, column), weights.one(row, column + 4)};
  }
  __device__ __forceinline__ void put(float2 of_lane) const {
    const std::uint32_t to = base + threadIdx.x % 32 * 4;
    __syncwarp();  // those of the group before have been read
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to), "f"(of_lane.x) : "memory");
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to + 128), "f"(of_lane.y) : "memory");
    __syncwarp();
  }
  __device__ __forceinline__ float operator()(int row, int column) const {
    float weight;
    asm volatile("ld.shared.f32 %0, [%1];\n"
                 : "=f"(weight)
                 : "r"(base + (column * kColumnsGroup + row) * 4)
                 : "memory");
    return weight;
  }
  // Of an even row and the one after it
  __device__ __forceinline__ float2 two(int row, int column) const {
    float2 weight;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n"
                 : "=f"(weight.x), "=f"(weight.y)
                 : "r"(base + (column * kColumnsGroup + row) * 4)
                 : "memory");
    return weight;
  }
};

// Weights of the eight blocks of a group with those of an earlier one, as second factors of a
// product: lane (g, t) has those of block g with blocks 2t and 2t + 1.
__device__ __forceinline__ std::uint32_t group_weights(const ColumnWeights& weights, int first,
                                                       int earlier) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = first + lane / 4;
  const int column = earlier + lane % 4 * 2;
  return ptx::pack_bf16(weights.one(row, column), weights.one(row, column + 1));
}

// c += the products of 8 blocks
__device__ __forceinline__ void mma_8(float (&c)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Chunks of one place in two neighbouring slots; a pair of their elements is a first factor.
struct ChunkPair {
  std::uint32_t even[4], odd[4];

  __device__ __forceinline__ std::uint32_t elements(int e) const {
    return __byte_perm(even[e / 2], odd[e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
  }
};

// What the blocks of a group see of all earlier groups, in place of the summaries of the last of
// them: S~'_i = sum over j of m_ij S_j for eight i at once. Lane (g, t) multiplies a chunk of a row
// of slots 2t and 2t + 1, two elements at a time, and has the same places of S~' afterwards. Of row
// r it is chunk g ^ r % 8, which is swizzled to the same place in every row.
struct FarColumns {
  static constexpr int kRows = 16, kRow = 128;  // a warp's, bytes
  static constexpr int kAsked = 8;              // chunks in pairs that are asked for ahead
  static constexpr int kGroupBytes = kColumnsGroup * ColumnsPlan::kSlot;

  std::uint32_t even, odd;              // the lane's places in a row of its two slots
  unsigned char *kept_even, *kept_odd;  // the same of the first group in memory
  int group;                            // the one that is to come
  bool keep;                            // the last two summaries of the one before it are kept
  std::uint32_t weights[3] = {};        // with the last group, the first and the second

  __device__ __forceinline__ FarColumns(std::uint32_t rows, unsigned char* kept, int number,
                                        bool keeps_last, const ColumnWeights& all)
      : group(number), keep(keeps_last && threadIdx.x % 4 == 3) {
    const int g = static_cast<int>(threadIdx.x % 32 / 4), slot = threadIdx.x % 4 * 2;
    const int at = slot * ColumnsPlan::kSlot + (g ^ slot) * 16;
    const int after = (slot + 1) * ColumnsPlan::kSlot + (g ^ (slot + 1)) * 16;
    even = rows + at, odd = rows + after;
    kept_even = kept + at, kept_odd = kept + after;
    constexpr int kBlocks = kColumnsGroup;
    const int first = group * kBlocks;
    weights[0] = group_weights(all, first, first - kBlocks);
    weights[1] = group_weights(all, first, 0);
    weights[2] = group_weights(all, first, kBlocks);
  }
  // `last` makes the last summary, when what lies in memory has been asked for.
  template <typename Last>
  __device__ __forceinline__ void mix(Last&& last) {
    if (group == 1) mix_rows<0>(last);
    if (group == 2) mix_rows<1>(last);
    if (group == 3) mix_rows<2>(last);
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void ask(ChunkPair& x, int of_group, int row) const {
    const int at = of_group * kGroupBytes + row * kRow;
    const uint4 a = __ldcg(reinterpret_cast<const uint4*>(kept_even + at));
    const uint4 b = __ldcg(reinterpret_cast<const uint4*>(kept_odd + at));
    x = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
  }
  __device__ __forceinline__ void keep_row(const ChunkPair& x, int row) const {
    const int at = (group - 1) * kGroupBytes + row * kRow;
    __stcg(reinterpret_cast<uint4*>(kept_even + at),
           make_uint4(x.even[0], x.even[1], x.even[2], x.even[3]));
    __stcg(reinterpret_cast<uint4*>(kept_odd + at),
           make_uint4(x.odd[0], x.odd[1], x.odd[2], x.odd[3]));
  }
  __device__ __forceinline__ void load(ChunkPair& x, int row) const {
    load_chunk(x.even, even + row * kRow);
    load_chunk(x.odd, odd + row * kRow);
  }
  // kEarlier: groups before the last one
  template <int kEarlier>
  __device__ __forceinline__ void mix_row(int row, ChunkPair& x, const ChunkPair* earlier) const {
    float c[4][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t last[] = {x.elements(2 * i), x.elements(2 * i + 1)};
      if constexpr (kEarlier == 0) {
        mma_8(c[i], last, weights[0]);
      } else {
        const std::uint32_t both[] = {last[0], last[1], earlier[0].elements(2 * i),
                                      earlier[0].elements(2 * i + 1)};
        ptx::mma_bf16(c[i], both, weights[0], weights[1]);
      }
    }
    if constexpr (kEarlier > 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t second[] = {earlier[1].elements(2 * i), earlier[1].elements(2 * i + 1)};
        mma_8(c[i], second, weights[2]);
      }
    } else if (keep) {
      keep_row(x, row);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x.even[i] = ptx::pack_bf16(c[i][0], c[i][2]);
      x.odd[i] = ptx::pack_bf16(c[i][1], c[i][3]);
    }
    store_chunk(even + row * kRow, x.even);
    store_chunk(odd + row * kRow, x.odd);
  }
  // A lane reads no place but those it writes, so that rows are loaded ahead.
  template <int kEarlier, typename Last>
  __device__ __forceinline__ void mix_rows(Last& last) {
    constexpr int kAhead = kEarlier > 1 ? kAsked / kEarlier : kAsked;
    ChunkPair x[2], earlier[kAhead][kEarlier > 0 ? kEarlier : 1];
    const auto ask_row = [&](int i, int row) {
#pragma unroll
      for (int e = 0; e < kEarlier; ++e) ask(earlier[i][e], e, row);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ask_row(i, i);
    last();
    load(x[0], 0);
#pragma unroll 1
    for (int start = 0; start < kRows; start += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (start + i + 1 < kRows) load(x[(i + 1) % 2], i + 1);
        mix_row<kEarlier>(i, x[i % 2], earlier[i]);
        if (start + i + kAhead < kRows) ask_row(i, i + kAhead);
      }
      even += kAhead * kRow, odd += kAhead * kRow;
      kept_even += kAhead * kRow, kept_odd += kAhead * kRow;
    }
  }

  static __device__ __forceinline__ void load_chunk(std::uint32_t (&x)[4], std::uint32_t at) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
  }
  static __device__ __forceinline__ void store_chunk(std::uint32_t at,
                                                     const std::uint32_t (&x)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
  }
};
static_assert(kColumnsMost <= 4 * kColumnsGroup && kColumnsMost <= 32);

}  // namespace mhla::cuda::sm90
