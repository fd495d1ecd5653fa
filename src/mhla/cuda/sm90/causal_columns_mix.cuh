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

  __device__ __forceinline__ explicit ColumnRows(std::uint32_t rows)
      : base(rows), place(Box::chunk(threadIdx.x % 16, threadIdx.x / 16 % 2)) {}
  // `group` is the even one of two groups of 8 columns.
  __device__ __forceinline__ std::uint32_t operand(int slot, int group) const {
    return base + slot * ColumnsPlan::kSlot + (place ^ group * 16);
  }
  __device__ __forceinline__ std::uint32_t mixed(int slot, int group) const {
    return base + slot * ColumnsPlan::kSlot + (place ^ (group ^ slot) * 16);
  }
  // Byte offset of a chunk among the warp's rows of a slot that is only mixed.
  static __device__ __forceinline__ int chunk(int slot, int row, int index) {
    return row * 128 + (index ^ row % 8 ^ slot) * 16;
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
// A weight on the diagonal of a first factor, so that a product adds rows of a slot as they lie.
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
// d += weight * b, 16 rows of 8 columns
__device__ __forceinline__ void add_rows(float* d, std::uint32_t factor, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%5,%4}, {%6,%7}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(factor), "r"(0), "r"(b0), "r"(b1));
}
// Rows of a slot as second factors: two groups of 8 columns.
__device__ __forceinline__ void load_groups(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
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
// To two sums at once, so that a summary is read once for both.
__device__ __forceinline__ void add_mixed(const ColumnRows& rows, int slot,
                                          const std::uint32_t (&factors)[2], ColumnSums (&d)[2]) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) {
    std::uint32_t r[4];
    load_groups(r, rows.mixed(slot, g));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      add_rows(d[i] + g * 4, factors[i], r[0], r[1]);
      add_rows(d[i] + g * 4 + 4, factors[i], r[2], r[3]);
    }
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
  __device__ __forceinline__ void load(const ColumnWeights& weights, int first) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = lane % kColumnsGroup, column = lane / kColumnsGroup;
    const float low = weights.one(first + row, first + column);
    const float high = weights.one(first + row, first + column + 4);
    __syncwarp();  // those of the group before have been read
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(base + lane * 4), "f"(low) : "memory");
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(base + lane * 4 + 128), "f"(high) : "memory");
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
// them: S~'_i = sum over j of m_ij S_j for eight i at once. Lane (g, t) multiplies chunk g of a row
// of slots 2t and 2t + 1, two elements at a time, and has the same places of S~' afterwards.
struct FarColumns {
  static constexpr int kRows = 16, kAsked = 8;  // rows; chunks in pairs that are asked for ahead

  std::uint32_t base;         // of the warp's rows of slot 0
  const unsigned char* kept;  // the same of the groups in memory
  int group;                  // the one that is to come
  int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);
  std::uint32_t weights[3] = {};  // with the last group, the first and the second

  __device__ __forceinline__ FarColumns(std::uint32_t rows, const unsigned char* earlier,
                                        int number, const ColumnWeights& all)
      : base(rows), kept(earlier), group(number) {
    constexpr int kBlocks = kColumnsGroup;
    const int first = group * kBlocks;
    weights[0] = group_weights(all, first, first - kBlocks);
    weights[1] = group_weights(all, first, 0);
    weights[2] = group_weights(all, first, kBlocks);
    if (group < 2) weights[1] = 0;
  }
  // `last` makes the last summary, when what lies in memory has been asked for.
  template <typename Last>
  __device__ __forceinline__ void mix(Last&& last) {
    // NOTE: or the compiler has the places of all rows in registers all the time.
    asm volatile("" : "+r"(base), "+r"(t), "+r"(g));
    if (group == 1) mix_rows<0>(last);
    if (group == 2) mix_rows<1>(last);
    if (group == 3) mix_rows<2>(last);
    __syncwarp();
  }

 private:
  // Of the lane's chunk in an even slot; in the odd one after it: the same with another bit.
  static constexpr int kOdd = ColumnsPlan::kSlot;
  __device__ __forceinline__ std::uint32_t place(int row) const {
    return 2 * t * ColumnsPlan::kSlot + ColumnRows::chunk(2 * t, row, g);
  }
  __device__ __forceinline__ void ask(ChunkPair& x, int of_group, int row) const {
    const unsigned char* from = kept + of_group * (kColumnsGroup * ColumnsPlan::kSlot);
    const uint4 even = __ldcg(reinterpret_cast<const uint4*>(from + place(row)));
    const uint4 odd = __ldcg(reinterpret_cast<const uint4*>(from + kOdd + (place(row) ^ 16)));
    x = {{even.x, even.y, even.z, even.w}, {odd.x, odd.y, odd.z, odd.w}};
  }
  __device__ __forceinline__ void load(ChunkPair& x, int row) const {
    load_chunk(x.even, base + place(row));
    load_chunk(x.odd, base + kOdd + (place(row) ^ 16));
  }
  // kEarlier: groups before the last one
  template <int kEarlier>
  __device__ __forceinline__ void mix_row(int row, ChunkPair& x, const ChunkPair* earlier) const {
    float c[4][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t last[] = {x.elements(2 * i), x.elements(2 * i + 1),
                                    kEarlier > 0 ? earlier[0].elements(2 * i) : 0,
                                    kEarlier > 0 ? earlier[0].elements(2 * i + 1) : 0};
      ptx::mma_bf16(c[i], last, weights[0], weights[1]);
    }
    if constexpr (kEarlier > 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t second[] = {earlier[1].elements(2 * i), earlier[1].elements(2 * i + 1)};
        mma_8(c[i], second, weights[2]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x.even[i] = ptx::pack_bf16(c[i][0], c[i][2]);
      x.odd[i] = ptx::pack_bf16(c[i][1], c[i][3]);
    }
    store_chunk(base + place(row), x.even);
    store_chunk(base + kOdd + (place(row) ^ 16), x.odd);
  }
  // A lane reads no place but those it writes, so that rows are loaded ahead.
  template <int kEarlier, typename Last>
  __device__ __forceinline__ void mix_rows(Last& last) const {
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
        const int row = start + i;
        if (row + 1 < kRows) load(x[(i + 1) % 2], row + 1);
        mix_row<kEarlier>(row, x[i % 2], earlier[i]);
        if (row + kAhead < kRows) ask_row(i, row + kAhead);
      }
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
static_assert(kColumnsMost <= 4 * kColumnsGroup);

}  // namespace mhla::cuda::sm90
