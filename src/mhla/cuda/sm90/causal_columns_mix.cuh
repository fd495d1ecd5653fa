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

__device__ __forceinline__ float low_half(std::uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_half(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}

using ColumnSums = float[kColumnsWidth / 2];  // a warp's rows as an accumulator has them

// Rows as an accumulator has them, rounded.
__device__ __forceinline__ void store_operand(const ColumnRows& rows, int slot,
                                              const ColumnSums& d) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) store_groups(rows.operand(slot, g), d + g * 4);
}
__device__ __forceinline__ void store_mixed(const ColumnRows& rows, int slot, const ColumnSums& d) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) store_groups(rows.mixed(slot, g), d + g * 4);
}
// A weight on the diagonal of a first factor, so that a product adds rows of a slot as they lie.
struct DiagonalFactor {
  std::uint32_t word;

  __device__ __forceinline__ explicit DiagonalFactor(float weight) {
    const int row = static_cast<int>(threadIdx.x % 32 / 4), column = static_cast<int>(threadIdx.x % 4) * 2;
    word = ptx::pack_bf16(row == column ? weight : 0.f, row == column + 1 ? weight : 0.f);
  }
  // d += weight * b, 16 rows of 8 columns
  __device__ __forceinline__ void add(float* d, std::uint32_t b0, std::uint32_t b1) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%5,%4}, {%6,%7}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(word), "r"(0), "r"(b0), "r"(b1));
  }
};
// Rows of a slot as second factors: two groups of 8 columns.
__device__ __forceinline__ void load_groups(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void add_mixed(const ColumnRows& rows, int slot,
                                          const DiagonalFactor& weight, ColumnSums& d) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) {
    std::uint32_t r[4];
    load_groups(r, rows.mixed(slot, g));
    weight.add(d + g * 4, r[0], r[1]);
    weight.add(d + g * 4 + 4, r[2], r[3]);
  }
}
// To two sums at once, so that a summary is read once for both.
__device__ __forceinline__ void add_mixed(const ColumnRows& rows, int slot,
                                          const DiagonalFactor& one, ColumnSums& d,
                                          const DiagonalFactor& other, ColumnSums& e) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) {
    std::uint32_t r[4];
    load_groups(r, rows.mixed(slot, g));
    one.add(d + g * 4, r[0], r[1]);
    one.add(d + g * 4 + 4, r[2], r[3]);
    other.add(e + g * 4, r[0], r[1]);
    other.add(e + g * 4 + 4, r[2], r[3]);
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
  __device__ __forceinline__ float one(int row, int column) const {
    return row < blocks ? __ldg(at + row * row_stride + column * column_stride) * scale : 0.f;
  }
};

// The weights of a group's blocks with one another, two of the 64 a lane.
struct NearWeights {
  float low, high;

  __device__ __forceinline__ void load(const ColumnWeights& weights, int first) {
    const int lane = static_cast<int>(threadIdx.x % 32), column = first + lane % kColumnsGroup;
    const auto seen = [&](int row) { return column < row ? weights.one(row, column) : 0.f; };
    low = seen(first + lane / kColumnsGroup);
    high = seen(first + lane / kColumnsGroup + 4);
  }
  __device__ __forceinline__ float operator()(int row, int column) const {
    return ptx::broadcast(row < 4 ? low : high, row % 4 * kColumnsGroup + column);
  }
};

// Weights of the eight blocks of a group with those of two earlier ones, as first factors of a
// product: in rows 0 to 7 rounded, in rows 8 to 15 what rounding left, so that the sum of two rows
// has weights of 16 bits.
struct FarColumnFactors {
  std::uint32_t a[4];

  // `first`: of the rows. The other two: first blocks of the columns, none where negative.
  __device__ __forceinline__ void load(const ColumnWeights& weights, int first, int one,
                                       int other) {
    const int lane = static_cast<int>(threadIdx.x % 32), row = first + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = half == 0 ? one : other, column = group + lane % 4 * 2;
      const float x = group >= 0 ? weights.one(row, column) : 0.f;
      const float y = group >= 0 ? weights.one(row, column + 1) : 0.f;
      const std::uint32_t rounded = ptx::pack_bf16(x, y);
      a[2 * half] = rounded;
      a[2 * half + 1] = ptx::pack_bf16(x - low_half(rounded), y - high_half(rounded));
    }
  }
};

// Chunks of one place in two neighbouring slots, and of all eight over the four lanes of a quad:
// element e of both is a second factor.
struct ChunkPair {
  uint4 even, odd;

  __device__ __forceinline__ void clear() { even = odd = make_uint4(0, 0, 0, 0); }
  __device__ __forceinline__ std::uint32_t factor(int e) const {
    const std::uint32_t x = e < 2 ? even.x : e < 4 ? even.y : e < 6 ? even.z : even.w;
    const std::uint32_t y = e < 2 ? odd.x : e < 4 ? odd.y : e < 6 ? odd.z : odd.w;
    return __byte_perm(x, y, e % 2 == 0 ? 0x5410 : 0x7632);
  }
};
__device__ __forceinline__ uint4 load_chunk(std::uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_chunk(std::uint32_t at, const std::uint32_t (&x)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]),
               "r"(x[3])
               : "memory");
}

// What the blocks of a group see of all earlier groups, in place of the summaries of the last of
// them: S~'_i = sum over j of m_ij S_j for eight i at once. Lane (g, t) multiplies chunk g of a row
// of slots 2t and 2t + 1, and has chunks 2t and 2t + 1 of slot g afterwards.
struct FarColumns {
  const ColumnsArgs& args;
  std::uint32_t base;          // of the warp's rows of slot 0
  const unsigned char* kept;   // the same of the groups in memory
  int g, t;
  FarColumnFactors factors[2];  // of the last group and the first, of the second

  __device__ __forceinline__ FarColumns(const ColumnsArgs& a, std::uint32_t rows,
                                        const unsigned char* earlier)
      : args(a),
        base(rows),
        kept(earlier),
        g(static_cast<int>(threadIdx.x % 32 / 4)),
        t(static_cast<int>(threadIdx.x % 4)) {}

  __device__ __forceinline__ int offset(int slot, int row) const {
    return slot * ColumnsPlan::kSlot + ColumnRows::chunk(slot, row, g);
  }
  __device__ __forceinline__ void load_kept(ChunkPair& x, int group, int row) const {
    const unsigned char* from = kept + group * (kColumnsGroup * ColumnsPlan::kSlot);
    x.even = __ldcg(reinterpret_cast<const uint4*>(from + offset(2 * t, row)));
    x.odd = __ldcg(reinterpret_cast<const uint4*>(from + offset(2 * t + 1, row)));
  }
  template <int kEarlier>
  __device__ __forceinline__ void mix_row(int row, const ChunkPair (&earlier)[2]) const {
    ChunkPair last;
    last.even = load_chunk(base + offset(2 * t, row));
    last.odd = load_chunk(base + offset(2 * t + 1, row));
    float c[8][4] = {};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      ptx::mma_bf16(c[e], factors[0].a, last.factor(e), kEarlier > 0 ? earlier[0].factor(e) : 0);
      if (kEarlier > 1) ptx::mma_bf16(c[e], factors[1].a, earlier[1].factor(e), 0);
    }
    __syncwarp();  // all have read the row
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = ptx::pack_bf16(c[2 * i][half] + c[2 * i][half + 2],
                              c[2 * i + 1][half] + c[2 * i + 1][half + 2]);
      }
      store_chunk(base + g * ColumnsPlan::kSlot + ColumnRows::chunk(g, row, 2 * t + half), x);
    }
  }
  // kEarlier: groups before the last one. Their rows are asked for two ahead.
  template <int kEarlier>
  __device__ __forceinline__ void mix_rows() const {
    ChunkPair earlier[2][2];
    const auto ask = [&](int row) {
#pragma unroll
      for (int i = 0; i < kEarlier; ++i) load_kept(earlier[row % 2][i], i, row);
    };
    ask(0), ask(1);
#pragma unroll 1
    for (int row = 0; row < 16; row += 2) {
      mix_row<kEarlier>(row, earlier[0]);
      if (row + 2 < 16) ask(row + 2);
      mix_row<kEarlier>(row + 1, earlier[1]);
      if (row + 3 < 16) ask(row + 3);
    }
  }
  // group: the one that is to come.
  __device__ __forceinline__ void mix(const ColumnWeights& weights, int group) {
    constexpr int kBlocks = kColumnsGroup;
    const int first = group * kBlocks;
    factors[0].load(weights, first, first - kBlocks, group > 1 ? 0 : -1);
    if (group > 2) factors[1].load(weights, first, kBlocks, -1);
    if (group == 1) mix_rows<0>();
    if (group == 2) mix_rows<1>();
    if (group == 3) mix_rows<2>();
    __syncwarp();
  }
};
static_assert(kColumnsMost <= 4 * kColumnsGroup);

}  // namespace mhla::cuda::sm90
