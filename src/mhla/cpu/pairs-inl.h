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

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

constexpr Index HalfUp(Index x) { return (x + 1) / 2; }

// Rounded to bf16, in the upper half of the bits.
HWY_INLINE VU RoundedBits(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const VU sum = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  return hn::And(sum, hn::Set(du, 0xffff0000u));
}
HWY_INLINE VF Rounded(VF x) { return hn::BitCast(DF(), RoundedBits(x)); }
// Values that bf16 holds exactly, `first` in the lower halves.
HWY_INLINE VF Paired(VF first, VF second) {
  const DU du;
  const VU low = hn::ShiftRight<16>(hn::BitCast(du, first));
  return hn::BitCast(DF(), hn::Or(low, hn::BitCast(du, second)));
}

template <bool kElu, bool kRound>
HWY_INLINE VF LoadMapped(const BFloat16* row, Index lanes, VF low, VF shift) {
  const DF d;
  VF x = Apply<kElu>(lanes < kLanes ? LoadFirst(row, lanes) : Load(row), low, shift);
  if (kRound) x = Rounded(x);
  return lanes < kLanes ? hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(lanes)), x) : x;
}

// Rows 2t and 2t + 1 as row t of pairs, row-major or panels; an odd last row is paired with zero.
template <bool kElu, bool kRound>
HWY_NOINLINE void PackRowPairs(const Source<BFloat16>& from, bool as_panels, float* to,
                               float* sums) {
  const DF d;
  const Panels panels(from.width);
  const VF low = hn::Set(d, from.map.low), shift = hn::Set(d, from.map.shift);
  const Index pairs = HalfUp(from.count);
  for (Index t = 0; t < pairs; ++t) {
    const BFloat16* even = from.row(2 * t);
    const bool has_odd = 2 * t + 1 < from.count;
    const BFloat16* odd = from.row(has_odd ? 2 * t + 1 : 2 * t);
    if (2 * t + 1 + kRowsAhead < from.count) {
      for (Index byte = 0; byte < 2 * from.width; byte += 64) {
        hwy::Prefetch(reinterpret_cast<const char*>(from.row(2 * t + kRowsAhead)) + byte);
        hwy::Prefetch(reinterpret_cast<const char*>(from.row(2 * t + 1 + kRowsAhead)) + byte);
      }
    }
    for (Index x = 0; x < from.width; x += kLanes) {
      const VF first = LoadMapped<kElu, kRound>(even + x, from.width - x, low, shift);
      VF second = LoadMapped<kElu, kRound>(odd + x, from.width - x, low, shift);
      if (!has_odd) second = hn::Zero(d);
      if (sums) Store(hn::Add(Load(sums + x), hn::Add(first, second)), sums + x);
      const Index j = x / kPanel;
      float* at = as_panels
                      ? to + panels.offset(j, pairs) + t * panels.width(j) + x % kPanel
                      : to + x / kChunk * (kTokens * kRowStride) + t * kRowStride + x % kChunk;
      Store(Paired(first, second), at);
    }
  }
}
inline void PackRowPairs(const Source<BFloat16>& from, bool as_panels, float* to,
                         float* sums = nullptr) {
  if (from.map.elu) PackRowPairs<true, true>(from, as_panels, to, sums);
  else if (from.map.shift != 0) PackRowPairs<false, true>(from, as_panels, to, sums);
  else PackRowPairs<false, false>(from, as_panels, to, sums);
}

// Rows as they are, columns 2c and 2c + 1 being pair c, row-major; dots with `with` where given.
template <bool kElu, bool kRound>
HWY_NOINLINE void PackColumnPairs(const Source<BFloat16>& from, float* to, const Also& also) {
  const DF d;
  const VF low = hn::Set(d, from.map.low), shift = hn::Set(d, from.map.shift);
  for (Index t = 0; t < from.count; ++t) {
    const BFloat16* row = from.row(t);
    if (t + kRowsAhead < from.count) {
      for (Index byte = 0; byte < 2 * from.width; byte += 64) {
        hwy::Prefetch(reinterpret_cast<const char*>(from.row(t + kRowsAhead)) + byte);
      }
    }
    VF dot = hn::Zero(d);
    for (Index x = 0; x < from.width; x += kLanes) {
      const VF value = LoadMapped<kElu, kRound>(row + x, from.width - x, low, shift);
      if (also.dots) dot = hn::MulAdd(value, Load(also.with + x), dot);
      float* at = to + x / 2 / kChunk * (kTokens * kRowStride) + t * kRowStride + x / 2 % kChunk;
      const hn::Rebind<std::uint16_t, DF> d16;
      hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(hn::BitCast(DU(), value))), d16,
                 reinterpret_cast<std::uint16_t*>(at));
    }
    if (also.dots) also.dots[t] = hn::GetLane(hn::SumOfLanes(d, dot));
  }
}
inline void PackColumnPairs(const Source<BFloat16>& from, float* to, const Also& also = {}) {
  if (from.map.elu) PackColumnPairs<true, true>(from, to, also);
  else if (from.map.shift != 0) PackColumnPairs<false, true>(from, to, also);
  else PackColumnPairs<false, false>(from, to, also);
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
        const VF second = has_odd ? Rounded(Load(even + step + x)) : hn::Zero(DF());
        Store(Paired(Rounded(Load(even + x)), second), target + r * step + x);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_PAIRS_INL_H_
