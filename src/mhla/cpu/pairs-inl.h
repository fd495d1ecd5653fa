// Operands of pairs of bf16 values, two in place of each f32, for dot-product instructions.
//
// What is rounded is rounded before it is summed, so that numerator and denominator see the same
// values and constants are preserved.
#if defined(MHLA_CPU_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_PAIRS_INL_H_
#undef MHLA_CPU_PAIRS_INL_H_
#else
#define MHLA_CPU_PAIRS_INL_H_
#endif

#include "mhla/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

#if MHLA_CPU_PAIRS
// Negative bf16 values become zero; a NaN stays, whatever its sign.
HWY_INLINE __m512i ReluWords(__m512i x) {
  const __m512i from_minus_zero = _mm512_sub_epi16(x, _mm512_set1_epi16(-0x8000));
  const __mmask32 kept = _mm512_cmpgt_epu16_mask(from_minus_zero, _mm512_set1_epi16(0x7f80));
  return _mm512_maskz_mov_epi16(kept, x);
}
#endif

// Feature maps by what they cost: words as they are, words compared, f32 and rounding.
enum class MapKind { identity, relu, shifted, elu };
template <class F>
HWY_INLINE void WithMapKind(const Map& map, F&& f) {
  if (map.elu) f(std::integral_constant<MapKind, MapKind::elu>{});
  else if (map.shift != 0) f(std::integral_constant<MapKind, MapKind::shifted>{});
  else if (map.low == 0) f(std::integral_constant<MapKind, MapKind::relu>{});
  else f(std::integral_constant<MapKind, MapKind::identity>{});
}

template <MapKind kKind>
HWY_INLINE VF LoadMapped(const BFloat16* row, Index lanes, VF low, VF shift) {
  const DF d;
  const VF x = Apply < kKind ==
               MapKind::elu > (lanes < kLanes ? LoadFirst(row, lanes) : Load(row), low, shift);
  return lanes < kLanes ? hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(lanes)), x) : x;
}

// A panel of two rows as pairs; no odd row is one of zeros.
template <MapKind kKind>
HWY_INLINE void LoadRowPairs(const BFloat16* even, const BFloat16* odd, VF low, VF shift,
                             VF (&pairs)[2]) {
#if MHLA_CPU_PAIRS
  if constexpr (kKind == MapKind::identity || kKind == MapKind::relu) {
    __m512i first = _mm512_loadu_si512(even);
    __m512i second = odd ? _mm512_loadu_si512(odd) : _mm512_setzero_si512();
    if (kKind == MapKind::relu) first = ReluWords(first), second = ReluWords(second);
    for (int v = 0; v < 2; ++v) {
      pairs[v].raw = _mm512_castsi512_ps(
          _mm512_permutex2var_epi16(first, Interleaved(v * 16, 32), second));
    }
    return;
  }
#endif
  for (int v = 0; v < 2; ++v) {
    const VF first = LoadMapped<kKind>(even + v * kLanes, kLanes, low, shift);
    const VF second = odd ? LoadMapped<kKind>(odd + v * kLanes, kLanes, low, shift)
                          : hn::Zero(DF());
    pairs[v] = RoundedPairs(first, second);
  }
}

// Rows 2t and 2t + 1 as row t of pairs, row-major or panels; an odd last row is paired with zero.
template <MapKind kKind>
HWY_NOINLINE void PackRowPairs(const Source<BFloat16>& from, bool as_panels, float* to,
                               float* sums) {
  const DF d;
  const Panels panels(from.width);
  const VF low = hn::Set(d, from.map.low), shift = hn::Set(d, from.map.shift);
  const Index pairs = HalfUp(from.count);
  const auto place = [&](Index x) HWY_ATTR {
    return as_panels ? to + panels.offset(x / kPanel, pairs) + x % kPanel
                     : to + x / kChunk * (kTokens * kRowStride) + x % kChunk;
  };
  const auto odd_row = [&](Index t) HWY_ATTR {
    return 2 * t + 1 < from.count ? from.row(2 * t + 1) : nullptr;
  };
  Index x = 0;
  for (; x + kPanel <= from.width; x += kPanel) {
    const Index step = as_panels ? kPanel : kRowStride;
    float* at = place(x);
    VF sum[2] = {hn::Zero(d), hn::Zero(d)};
    if (sums) sum[0] = Load(sums + x), sum[1] = Load(sums + x + kLanes);
    for (Index t = 0; t < pairs; ++t, at += step) {
      if (2 * t + 1 + kRowsAhead < from.count) {
        hwy::Prefetch(from.row(2 * t + kRowsAhead) + x);
        hwy::Prefetch(from.row(2 * t + 1 + kRowsAhead) + x);
      }
      const BFloat16* odd = odd_row(t);
      VF both[2];
      LoadRowPairs<kKind>(from.row(2 * t) + x, odd ? odd + x : nullptr, low, shift, both);
      for (int v = 0; v < 2; ++v) {
        if (sums) sum[v] = hn::Add(sum[v], hn::Add(FirstOf(both[v]), SecondOf(both[v])));
        Store(both[v], at + v * kLanes);
      }
    }
    if (sums) Store(sum[0], sums + x), Store(sum[1], sums + x + kLanes);
  }
  for (; x < from.width; x += kLanes) {
    const Index step = as_panels ? panels.width(x / kPanel) : kRowStride;
    float* at = place(x);
    for (Index t = 0; t < pairs; ++t, at += step) {
      const VF first = LoadMapped<kKind>(from.row(2 * t) + x, from.width - x, low, shift);
      const BFloat16* odd = odd_row(t);
      const VF second = odd ? LoadMapped<kKind>(odd + x, from.width - x, low, shift) : hn::Zero(d);
      const VF both = RoundedPairs(first, second);
      if (sums) {
        Store(hn::Add(Load(sums + x), hn::Add(FirstOf(both), SecondOf(both))), sums + x);
      }
      Store(both, at);
    }
  }
}
inline void PackRowPairs(const Source<BFloat16>& from, bool as_panels, float* to,
                         float* sums = nullptr) {
  WithMapKind(from.map,
              [&](auto kind) HWY_ATTR { PackRowPairs<kind.value>(from, as_panels, to, sums); });
}

// Rows as they are, columns 2c and 2c + 1 being pair c, row-major; dots with `with` where given.
template <MapKind kKind>
HWY_NOINLINE void PackColumnPairs(const Source<BFloat16>& from, float* to, const Also& also) {
  const DF d;
  const VF low = hn::Set(d, from.map.low), shift = hn::Set(d, from.map.shift);
  for (Index t = 0; t < from.count; ++t) {
    const BFloat16* row = from.row(t);
    if (t + kRowsAhead < from.count) {
      for (Index x = 0; x < from.width; x += 32) hwy::Prefetch(from.row(t + kRowsAhead) + x);
    }
    const auto place = [&](Index x) HWY_ATTR {
      return to + x / 2 / kChunk * (kTokens * kRowStride) + t * kRowStride + x / 2 % kChunk;
    };
    VF dot = hn::Zero(d);
    const auto add = [&](Index x) HWY_ATTR {
      const BFloat16* rounded = reinterpret_cast<const BFloat16*>(place(x));
      dot = hn::MulAdd(Load(rounded), Load(also.with + x), dot);
    };
    Index x = 0;
    for (; x + kPanel <= from.width; x += kPanel) {
#if MHLA_CPU_PAIRS
      if constexpr (kKind == MapKind::identity || kKind == MapKind::relu) {
        const __m512i words = _mm512_loadu_si512(row + x);
        _mm512_storeu_si512(place(x), kKind == MapKind::relu ? ReluWords(words) : words);
        if (also.dots) add(x), add(x + kLanes);
        continue;
      }
#endif
      StoreColumnPairs(LoadMapped<kKind>(row + x, kLanes, low, shift),
                       LoadMapped<kKind>(row + x + kLanes, kLanes, low, shift), place(x));
      if (also.dots) add(x), add(x + kLanes);
    }
    for (; x < from.width; x += kLanes) {
      const VF value = LoadMapped<kKind>(row + x, from.width - x, low, shift);
      StoreAs<true>(value, reinterpret_cast<BFloat16*>(place(x)));
      if (also.dots) add(x);
    }
    if (also.dots) also.dots[t] = hn::GetLane(hn::SumOfLanes(d, dot));
  }
}
inline void PackColumnPairs(const Source<BFloat16>& from, float* to, const Also& also = {}) {
  WithMapKind(from.map, [&](auto kind) HWY_ATTR { PackColumnPairs<kind.value>(from, to, also); });
}

// A panel matrix [rows, width] with neighbouring rows paired.
inline HWY_NOINLINE void PairRows(const float* from, Index rows, Index width, float* to) {
  const Panels panels(width);
  const Index pairs = HalfUp(rows);
  for (Index j = 0; j < panels.count; ++j) {
    const Index step = panels.width(j);
    const float* source = from + panels.offset(j, rows);
    float* target = to + panels.offset(j, pairs);
    for (Index r = 0; r < pairs; ++r) {
      const float* even = source + 2 * r * step;
      const bool has_odd = 2 * r + 1 < rows;
      for (Index x = 0; x < step; x += kLanes) {
        const VF second = has_odd ? Load(even + step + x) : hn::Zero(DF());
        Store(RoundedPairs(Load(even + x), second), target + r * step + x);
      }
    }
  }
}

// Rows of a lower triangular matrix times `factor`, in place: neighbouring columns as pairs. What
// lies above the diagonal stays zero as far as a tile reaches.
inline HWY_NOINLINE void PairLowerColumns(float* rows, Index count, float factor) {
  const VF f = hn::Set(DF(), factor);
  for (Index r = 0; r < count; ++r) {
    float* row = rows + r * kRowStride;
    for (Index c = 0; c <= r + kMaxRows; c += kPanel) {  // pairs move towards the front
      StoreColumnPairs(hn::Mul(f, Load(row + c)), hn::Mul(f, Load(row + c + kLanes)), row + c / 2);
    }
  }
}
// The same, neighbouring rows as pairs.
inline HWY_NOINLINE void PairLowerRows(const float* rows, Index count, float factor, float* to) {
  const DF d;
  const VF f = hn::Set(d, factor);
  for (Index r = 0; r < count; r += 2) {
    const float* even = rows + r * kRowStride;
    for (Index c = 0; c < r + 1 + kMaxRows; c += kLanes) {
      const VF second = r + 1 < count ? hn::Mul(f, Load(even + kRowStride + c)) : hn::Zero(d);
      Store(RoundedPairs(hn::Mul(f, Load(even + c)), second), to + r / 2 * kRowStride + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_PAIRS_INL_H_
