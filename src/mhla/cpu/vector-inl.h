// The vectors of an instruction set, and rounding them to bf16 in pairs.
#if defined(MHLA_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_VECTOR_INL_H_
#undef MHLA_CPU_VECTOR_INL_H_
#else
#define MHLA_CPU_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include "mhla/cpu/geometry.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = HWY_CAPPED(float, 16);  // wider vectors would not fit the layout of the workspace
using VF = hn::Vec<DF>;
inline constexpr Index kLanes = MaxLanes(DF());
inline constexpr Index kPanel = 2 * kLanes;  // columns of a full tile
// 32 registers hold 14 x 2 accumulators, 2 of B and a broadcast; 16 hold 6 x 2.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kMaxRows = 14;
#else
inline constexpr int kMaxRows = 6;
#endif

// AVX-512-BF16 dot products, which Highway 1.0 does not know, beside the AVX-512 kernels.
#undef MHLA_CPU_PAIRS
#if HWY_TARGET == HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
#define MHLA_CPU_PAIRS 1
#else
#define MHLA_CPU_PAIRS 0
#endif

// AMX matrix registers, whose use Linux grants on request, beside those.
#undef MHLA_CPU_AMX
#if MHLA_CPU_PAIRS && HWY_ARCH_X86_64 && defined(__linux__)
#define MHLA_CPU_AMX 1
#else
#define MHLA_CPU_AMX 0
#endif

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// Rounded to bf16, in the upper half of the bits.
HWY_INLINE VU RoundedBits(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const VU sum = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  return hn::And(sum, hn::Set(du, 0xffff0000u));
}
HWY_INLINE VF Rounded(VF x) { return hn::BitCast(DF(), RoundedBits(x)); }

#if MHLA_CPU_PAIRS
// 32 values rounded, `first` before `second`.
HWY_INLINE __m512i RoundedWords(VF first, VF second) {
  __m512i words;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(words) : "v"(first.raw), "v"(second.raw));
  return words;
}
// Word numbers c, c + distance of pairs c = from, from + 1, ...
HWY_INLINE __m512i Interleaved(int from, int distance) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const int first = 0x10001 * from + (distance << 16);
  return _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(0x10001)),
                          _mm512_set1_epi32(first));
}
#endif

// Rounded values as pairs, `first` in the lower halves.
HWY_INLINE VF RoundedPairs(VF first, VF second) {
#if MHLA_CPU_PAIRS
  const __m512i words = RoundedWords(first, second);
  return VF{_mm512_castsi512_ps(_mm512_permutexvar_epi16(Interleaved(0, 16), words))};
#else
  const VU low = hn::ShiftRight<16>(RoundedBits(first));
  return hn::BitCast(DF(), hn::Or(low, RoundedBits(second)));
#endif
}
HWY_INLINE VF FirstOf(VF pairs) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::BitCast(DU(), pairs)));
}
HWY_INLINE VF SecondOf(VF pairs) {
  return hn::BitCast(DF(), hn::And(hn::BitCast(DU(), pairs), hn::Set(DU(), 0xffff0000u)));
}
// A panel of columns rounded, neighbouring ones as pairs.
HWY_INLINE void StoreColumnPairs(VF first, VF second, float* to) {
#if MHLA_CPU_PAIRS
  _mm512_storeu_si512(to, RoundedWords(first, second));
#else
  const hn::Rebind<std::uint16_t, DF> d16;
  std::uint16_t* words = reinterpret_cast<std::uint16_t*>(to);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(RoundedBits(first))), d16, words);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(RoundedBits(second))), d16, words + kLanes);
#endif
}
// Pairs of rows of a panel, to pairs of its columns: a row each.
HWY_INLINE void SplitPairs(VF lower, VF upper, float* first, float* second) {
#if MHLA_CPU_PAIRS
  // Words 2c of all columns c, then words 2c + 1.
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i even = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(0x40004)),
                                        _mm512_set1_epi32(0x20000));
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(0x10001));
  const __m512i a = _mm512_castps_si512(lower.raw), b = _mm512_castps_si512(upper.raw);
  _mm512_storeu_si512(first, _mm512_permutex2var_epi16(a, even, b));
  _mm512_storeu_si512(second, _mm512_permutex2var_epi16(a, odd, b));
#else
  StoreColumnPairs(FirstOf(lower), FirstOf(upper), first);
  StoreColumnPairs(SecondOf(lower), SecondOf(upper), second);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_VECTOR_INL_H_
