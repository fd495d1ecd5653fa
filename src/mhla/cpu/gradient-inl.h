// Pieces of the backward pass: incoming gradients, outgoing gradients, products of summaries.
#if defined(MHLA_CPU_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_GRADIENT_INL_H_
#undef MHLA_CPU_GRADIENT_INL_H_
#else
#define MHLA_CPU_GRADIENT_INL_H_
#endif

#include "mhla/cpu/head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// to[t] = factor[t] * row t, row-major chunks or panels; with `other` also
// dots[t] = -factor[t] * <row t, other row t>.
template <class T>
void PackScaled(const Source<T>& from, const float* factor, bool as_panels, float* to,
                const Source<T>* other = nullptr, float* dots = nullptr) {
  const DF d;
  const Panels panels(from.width);
  for (Index t = 0; t < from.count; ++t) {
    const VF f = hn::Set(d, factor[t]);
    const T* row = from.row(t);
    const T* partner = other ? other->row(t) : row;
    VF dot = hn::Zero(d);
    for (Index x = 0; x < from.width; x += kLanes) {
      const Index left = from.width - x, j = x / kPanel;
      const VF value = left < kLanes ? LoadFirst(row + x, left) : Load(row + x);
      if (other) {
        const VF with = left < kLanes ? LoadFirst(partner + x, left) : Load(partner + x);
        dot = hn::MulAdd(value, with, dot);
      }
      float* at = as_panels
                      ? to + panels.offset(j, from.count) + t * panels.width(j) + x % kPanel
                      : to + x / kChunk * (kTokens * kRowStride) + t * kRowStride + x % kChunk;
      Store(hn::Mul(f, value), at);
    }
    if (other) dots[t] = -factor[t] * hn::GetLane(hn::SumOfLanes(d, dot));
  }
}

// The same as pairs of neighbouring columns, row-major.
template <class T>
void PackScaledPairs(const Source<T>& from, const float* factor, float* to) {
  for (Index t = 0; t < from.count; ++t) {
    const VF f = hn::Set(DF(), factor[t]);
    for (Index x = 0; x < from.width; x += kLanes) {
      const Index left = from.width - x, c = x / 2;
      const VF value = left < kLanes ? LoadFirst(from.row(t) + x, left) : Load(from.row(t) + x);
      float* at = to + c / kChunk * (kTokens * kRowStride) + t * kRowStride + c % kChunk;
      StoreAs<true>(hn::Mul(f, value), reinterpret_cast<BFloat16*>(at));
    }
  }
}

// Summary `block` of a stack, a panel matrix [rows, width], with neighbouring rows paired.
inline HWY_NOINLINE void PairRows(const Stack& stack, Index block, Index rows, Index width,
                                  float* to) {
  const Panels panels(width);
  const Index ahead = 2 * stack.group_stride();  // the same part of a later group
  for (Index j = 0; j < panels.count; ++j) {
    const Index step = panels.width(j), first = panels.offset(j, rows);
    for (Index r = 0; r < rows; r += 2) {
      const float* even = stack.at(first + r * step, block);
      const float* odd = stack.at(first + (r + 1) * step, block);
      for (Index x = 0; x < step; x += 16) {
        __builtin_prefetch(even + ahead + x, 0, 2);
        __builtin_prefetch(odd + ahead + x, 0, 2);
      }
      for (Index x = 0; x < step; x += kLanes, to += kLanes) {
        const VF second = r + 1 < rows ? Load(odd + x) : hn::Zero(DF());
        Store(RoundedPairs(Load(even + x), second), to);
      }
    }
  }
}
// A panel matrix [rows, width] of which rows are paired, transposed: panels [width, rows] of which
// rows are.
inline HWY_NOINLINE void TransposePairs(const float* from, Index rows, Index width, float* to) {
  const Panels source(width), target(rows);
  const Index pairs = HalfUp(width), heights = HalfUp(rows);
  HWY_ALIGN float square[kLanes * kLanes] = {};  // a row of pairs each
  for (Index r = 0; r < target.columns; r += kLanes) {
    const Index k = r / kPanel, step = target.width(k);
    float* strip = to + target.offset(k, pairs) + r % kPanel;
    for (Index j = 0; j < source.count; ++j, strip += kLanes * step) {
      const Index columns = source.width(j), count = std::min(kLanes, pairs - j * kLanes);
      const float* row = from + source.offset(j, heights) + r / 2 * columns;
      for (Index t = 0; t < kLanes; t += 2, row += columns) {
        const bool inside = (r + t) / 2 < heights;
        const VF lower = inside ? Load(row) : hn::Zero(DF());
        const VF upper = inside && columns == kPanel ? Load(row + kLanes) : hn::Zero(DF());
        SplitPairs(lower, upper, square + t * kLanes, square + (t + 1) * kLanes);
      }
      TransposeStrip(square, kLanes, kLanes, count, strip, step);
    }
  }
}

// The gradient of mapped rows: rows[t] + weight[t] * vector; a missing part is zero, a missing
// weight one.
struct MappedGradient {
  const float* rows = nullptr;  // [count, stride]
  Index stride = 0;
  const float* weight = nullptr;
  const float* vector = nullptr;
};

template <bool kElu>
HWY_INLINE VF TimesSlope(VF grad, VF x, VF low) {
  const DF d;
  if constexpr (kElu) {
    const VF slope = hn::Exp(d, hn::Min(x, hn::Zero(d)));  // one where x is positive
    return hn::Mul(grad, slope);
  } else {
    return hn::IfThenElseZero(hn::Gt(x, low), grad);  // low is 0, or -inf for the identity
  }
}

// dots[t] = <phi(row t), with[t]>.
template <class T, bool kElu>
void MappedDots(const Source<T>& x, const float* with, Index stride, float* dots) {
  const DF d;
  const VF low = hn::Set(d, x.map.low), shift = hn::Set(d, x.map.shift);
  for (Index t = 0; t < x.count; ++t) {
    const T* row = x.row(t);
    VF dot = hn::Zero(d);
    for (Index c = 0; c < x.width; c += kLanes) {
      const Index left = x.width - c;
      const VF value = Apply<kElu>(left < kLanes ? LoadFirst(row + c, left) : Load(row + c), low,
                                   shift);
      // Behind the end a map need not be zero, but the other operand is.
      dot = hn::MulAdd(value, Load(with + t * stride + c), dot);
    }
    dots[t] = hn::GetLane(hn::SumOfLanes(d, dot));
  }
}
template <class T>
void MappedDots(const Source<T>& x, const float* with, Index stride, float* dots) {
  if (x.map.elu) MappedDots<T, true>(x, with, stride, dots);
  else MappedDots<T, false>(x, with, stride, dots);
}

// Writes the gradient of the unmapped rows x.
template <bool kNative, bool kElu, class T>
void StoreGradient(const MappedGradient& g, const Source<T>& x, const Rows& to) {
  const DF d;
  const VF low = hn::Set(d, x.map.low);
  for (Index t = 0; t < x.count; ++t) {
    const T* from = x.row(t);
    T* out = reinterpret_cast<T*>(to.data) + x.at[t] * to.stride;
    const VF weight = hn::Set(d, g.weight ? g.weight[t] : 1.0f);
    for (Index c = 0; c < x.width; c += kLanes) {
      const Index left = x.width - c;
      VF grad = g.rows ? Load(g.rows + t * g.stride + c) : hn::Zero(d);
      if (g.vector) grad = hn::MulAdd(weight, Load(g.vector + c), grad);
      if (left < kLanes) {
        StoreFirst(TimesSlope<kElu>(grad, LoadFirst(from + c, left), low), out + c, left);
      } else {
        StoreAs<kNative>(TimesSlope<kElu>(grad, Load(from + c), low), out + c);
      }
    }
  }
}
template <bool kNative, class T>
void StoreGradient(const MappedGradient& g, const Source<T>& x, const Rows& to) {
  if (x.map.elu) StoreGradient<kNative, true>(g, x, to);
  else StoreGradient<kNative, false>(g, x, to);
}

// 32 registers hold 5 x 5 accumulators, 5 of B and one of A; 16 hold 3 x 3.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kDotTile = 5;
#else
inline constexpr int kDotTile = 3;
#endif

// to[r, c] += <a block r, b block c> over `panels` panels of two stacks, from the begin of a group;
// groups follow at a_step and b_step.
template <int kRows, int kCols>
HWY_NOINLINE void DotTile(const float* a, Index a_step, const float* b, Index b_step, Index panels,
                          float* to, Index stride) {
  const DF d;
  VF acc[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = hn::Zero(d);
  }
  for (Index p = 0; p < panels; p += kGroup, a += a_step, b += b_step) {
    const Index length = std::min(kGroup, panels - p) * kPanel;
    for (Index x = 0; x < length; x += kLanes) {
      VF bv[kCols];
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) bv[c] = Load(b + c * Stack::kStride + x);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const VF av = Load(a + r * Stack::kStride + x);
#pragma GCC unroll 8
        for (int c = 0; c < kCols; ++c) acc[r][c] = hn::MulAdd(av, bv[c], acc[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) to[r * stride + c] += hn::GetLane(hn::SumOfLanes(d, acc[r][c]));
  }
}

#if MHLA_CPU_PAIRS
// The same over pairs.
template <int kRows, int kCols>
HWY_NOINLINE __attribute__((target("avx512bf16"))) void PairDotTile(const float* a, Index a_step,
                                                                    const float* b, Index b_step,
                                                                    Index panels, float* to,
                                                                    Index stride) {
  __m512 acc[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = _mm512_setzero_ps();
  }
  for (Index p = 0; p < panels; p += kGroup, a += a_step, b += b_step) {
    const Index length = std::min(kGroup, panels - p) * kPanel;
    for (Index x = 0; x < length; x += kLanes) {
      __m512bh bv[kCols];
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) bv[c] = (__m512bh)Load(b + c * Stack::kStride + x).raw;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512bh av = (__m512bh)Load(a + r * Stack::kStride + x).raw;
#pragma GCC unroll 8
        for (int c = 0; c < kCols; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], av, bv[c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
      to[r * stride + c] += hn::GetLane(hn::SumOfLanes(DF(), VF{acc[r][c]}));
    }
  }
}
#endif

using DotFunction = void (*)(const float*, Index, const float*, Index, Index, float*, Index);

template <bool kHalved, int... kAt>
constexpr std::array<DotFunction, sizeof...(kAt)> DotTable(std::integer_sequence<int, kAt...>) {
#if MHLA_CPU_PAIRS
  if constexpr (kHalved) return {&PairDotTile<kAt / kDotTile + 1, kAt % kDotTile + 1>...};
#endif
  return {&DotTile<kAt / kDotTile + 1, kAt % kDotTile + 1>...};
}

// kHalved: summaries are pairs.
template <bool kHalved>
HWY_INLINE DotFunction DotFor(Index rows, Index columns) {
  static constexpr auto kTable = DotTable<kHalved>(
      std::make_integer_sequence<int, kDotTile * kDotTile>{});
  return kTable[static_cast<std::size_t>((rows - 1) * kDotTile + columns - 1)];
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_GRADIENT_INL_H_
