// Register-tiled products of packed f32 operands: the one inner loop of every CPU pass.
//
// A tile is up to kMaxRows rows by one or two vectors of columns. B is a panel: row k is
// contiguous, one or two vectors wide. A is read by broadcast, either row-major with a compile-time
// stride (so that the address of each row is a displacement) or k-major (row k contiguous, any
// stride).
#if defined(MHLA_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_TILE_INL_H_
#undef MHLA_CPU_TILE_INL_H_
#else
#define MHLA_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "mhla/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {
// One summand A * B of a tile: k steps of both operands.
struct Term {
  const float* a;
  const float* b;
  Index lda;  // k-major only
  Index ldb;
  Index k;
};

struct TileOut {
  float* rows[kMaxRows];         // where each row's columns go
  const float* scale = nullptr;  // one factor per row
  bool add = false;              // to what is there
  bool paired = false;           // neighbouring rows as pairs of bf16, one of `rows` for both
};

template <int kRows, int kVecs>
HWY_INLINE void ClearTile(VF (&acc)[kRows][kVecs]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(DF());
  }
}

template <int kRows, int kVecs>
HWY_INLINE void StoreTile(const VF (&acc)[kRows][kVecs], const TileOut& out) {
  const DF d;
  const float* HWY_RESTRICT scale = out.scale;
  const bool add = out.add;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* HWY_RESTRICT to = out.rows[r];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      VF x = acc[r][v];
      if (scale) x = hn::Mul(x, hn::Set(d, scale[r]));
      if (add) x = hn::Add(x, hn::LoadU(d, to + v * kLanes));
      hn::StoreU(x, d, to + v * kLanes);
    }
  }
}

// The same where rows may have to be paired; nothing is added to those.
template <int kRows, int kVecs>
HWY_INLINE void StorePairTile(const VF (&acc)[kRows][kVecs], const TileOut& out) {
  if (!out.paired) return StoreTile(acc, out);
  const DF d;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r += 2) {
    const VF first = hn::Set(d, out.scale ? out.scale[r] : 1.0f);
    const VF second = hn::Set(d, out.scale && r + 1 < kRows ? out.scale[r + 1] : 1.0f);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const VF odd = r + 1 < kRows ? hn::Mul(second, acc[r + 1 < kRows ? r + 1 : r][v])
                                   : hn::Zero(d);
      hn::StoreU(RoundedPairs(hn::Mul(first, acc[r][v]), odd), d, out.rows[r / 2] + v * kLanes);
    }
  }
}

template <int kRows, int kVecs, bool kKMajor>
HWY_NOINLINE void Tile(const Term* terms, int count, const TileOut& out) {
  const DF d;
  VF acc[kRows][kVecs];
  ClearTile(acc);
  for (int t = 0; t < count; ++t) {
    const float* HWY_RESTRICT a = terms[t].a;
    const float* HWY_RESTRICT b = terms[t].b;
    const Index lda = kKMajor ? terms[t].lda : 1, ldb = terms[t].ldb;
#pragma GCC unroll 2
    for (Index k = terms[t].k; k > 0; --k) {
      VF bv[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) bv[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const VF av = hn::Set(d, a[kKMajor ? r : r * kRowStride]);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(av, bv[v], acc[r][v]);
      }
      a += lda;
      b += ldb;
    }
  }
  StoreTile(acc, out);
}

using TileFunction = void (*)(const Term*, int, const TileOut&);

#if MHLA_CPU_PAIRS
// The same over pairs of bf16 values: one step takes two columns of A and two rows of B.
template <int kRows, int kVecs, bool kKMajor>
HWY_NOINLINE __attribute__((target("avx512bf16"))) void PairTile(const Term* terms, int count,
                                                                 const TileOut& out) {
  const DF d;
  VF acc[kRows][kVecs];
  ClearTile(acc);
  for (int t = 0; t < count; ++t) {
    const float* HWY_RESTRICT a = terms[t].a;
    const float* HWY_RESTRICT b = terms[t].b;
    const Index lda = kKMajor ? terms[t].lda : 1, ldb = terms[t].ldb;
#pragma GCC unroll 2
    for (Index k = terms[t].k; k > 0; --k) {
      __m512bh bv[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) bv[v] = (__m512bh)hn::LoadU(d, b + v * kLanes).raw;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh av = (__m512bh)hn::Set(d, a[kKMajor ? r : r * kRowStride]).raw;
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) acc[r][v].raw = _mm512_dpbf16_ps(acc[r][v].raw, av, bv[v]);
      }
      a += lda;
      b += ldb;
    }
  }
  StorePairTile(acc, out);
}

// Mixing of summaries whose rows are pairs: a vector of them of two blocks becomes two whose pairs
// are blocks, as those of the weights. A is k-major, k counts blocks; results are pairs of rows.
template <int kRows>
HWY_NOINLINE __attribute__((target("avx512bf16"))) void MixTile(const Term* term, int,
                                                                const TileOut& out) {
  const DF d;
  VF acc[kRows][2];
  ClearTile(acc);
  const float* HWY_RESTRICT a = term->a;
  const float* HWY_RESTRICT b = term->b;
  const Index lda = term->lda, ldb = term->ldb;
  const auto step = [&](__m512i one, __m512i other) HWY_ATTR
      __attribute__((target("avx512bf16"), always_inline)) {
        constexpr __mmask32 kUpper = 0xaaaaaaaa;
        const __m512bh first = (__m512bh)_mm512_mask_blend_epi16(kUpper, one,
                                                                 _mm512_slli_epi32(other, 16));
        const __m512bh second = (__m512bh)_mm512_mask_blend_epi16(
            kUpper, _mm512_srli_epi32(one, 16), other);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m512bh av = (__m512bh)hn::Set(d, a[r]).raw;
          acc[r][0].raw = _mm512_dpbf16_ps(acc[r][0].raw, av, first);
          acc[r][1].raw = _mm512_dpbf16_ps(acc[r][1].raw, av, second);
        }
      };
  Index k = term->k;
  for (; k > 1; k -= 2, a += lda, b += 2 * ldb) {
    step(_mm512_loadu_si512(b), _mm512_loadu_si512(b + ldb));
  }
  if (k > 0) step(_mm512_loadu_si512(b), _mm512_setzero_si512());
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) hn::StoreU(RoundedPairs(acc[r][0], acc[r][1]), d, out.rows[r]);
}
template <int... kRows>
constexpr std::array<TileFunction, sizeof...(kRows)> MixTable(
    std::integer_sequence<int, kRows...>) {
  return {&MixTile<kRows + 1>...};
}
HWY_INLINE TileFunction MixTileFor(Index rows) {
  static constexpr auto kTable = MixTable(std::make_integer_sequence<int, kMaxRows>{});
  return kTable[static_cast<std::size_t>(rows - 1)];
}
#endif

template <int kVecs, bool kKMajor, bool kPairs, int... kRows>
constexpr std::array<TileFunction, sizeof...(kRows)> TileTable(
    std::integer_sequence<int, kRows...>) {
#if MHLA_CPU_PAIRS
  if constexpr (kPairs) return {&PairTile<kRows + 1, kVecs, kKMajor>...};
#endif
  return {&Tile<kRows + 1, kVecs, kKMajor>...};
}

// kPairs: operands hold pairs of bf16 values in place of each float.
template <bool kKMajor, bool kPairs = false>
HWY_INLINE TileFunction TileFor(Index rows, Index columns) {
  using Rows = std::make_integer_sequence<int, kMaxRows>;
  static constexpr auto kOne = TileTable<1, kKMajor, kPairs>(Rows{});
  static constexpr auto kTwo = TileTable<2, kKMajor, kPairs>(Rows{});
  return (columns > kLanes ? kTwo : kOne)[static_cast<std::size_t>(rows - 1)];
}

// A count of rows as tiles of nearly equal height: the last one is no sliver.
struct Split {
  Index tiles, base, extra;
  explicit Split(Index count, Index tallest = kMaxRows)
      : tiles((count + tallest - 1) / tallest),
        base(tiles ? count / tiles : 0),
        extra(tiles ? count % tiles : 0) {}
  Index begin(Index t) const { return t * base + std::min(t, extra); }
  Index height(Index t) const { return base + (t < extra ? 1 : 0); }
};

// Columns of a matrix as panels of kPanel, the last one of kLanes where that is enough. A panel
// matrix of `rows` rows stores panel j at j * kPanel * rows, row by row.
struct Panels {
  Index columns, count;
  explicit Panels(Index width)
      : columns((width + kLanes - 1) / kLanes * kLanes), count((columns + kPanel - 1) / kPanel) {}
  Index width(Index j) const { return std::min(kPanel, columns - j * kPanel); }
  Index offset(Index j, Index rows) const { return j * kPanel * rows; }
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_TILE_INL_H_
