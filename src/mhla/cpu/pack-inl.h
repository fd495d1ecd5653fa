// Reading token rows of any storage type into packed f32 operands, the feature map applied on the
// way.
#if defined(MHLA_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_PACK_INL_H_
#undef MHLA_CPU_PACK_INL_H_
#else
#define MHLA_CPU_PACK_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>

#include <cstring>
#include <limits>

#include "mhla/core/half.h"
#include "mhla/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE VF Load(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE void Store(VF x, float* p) { hn::StoreU(x, DF(), p); }

#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE VF Load(const T* p) {
  return hn::Set(DF(), to_float(*p));
}
template <class T>
HWY_INLINE void Store(VF x, T* p) {
  *p = from_float<T>(hn::GetLane(x));
}
#else
HWY_INLINE VF Load(const BFloat16* p) {
  const hn::Rebind<hwy::bfloat16_t, DF> d;
  return hn::PromoteTo(DF(), hn::LoadU(d, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}
HWY_INLINE VF Load(const Float16* p) {
  const hn::Rebind<hwy::float16_t, DF> d;
  return hn::PromoteTo(DF(), hn::LoadU(d, reinterpret_cast<const hwy::float16_t*>(p)));
}
// NOTE: Highway's own demotion to bf16 truncates; this rounds to nearest even and keeps NaN one.
HWY_INLINE void Store(VF x, BFloat16* p) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> d16;
  const auto bits = hn::BitCast(du, x);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, quiet, rounded)), d16,
             reinterpret_cast<std::uint16_t*>(p));
}
HWY_INLINE void Store(VF x, Float16* p) {
  const hn::Rebind<hwy::float16_t, DF> d;
  hn::StoreU(hn::DemoteTo(d, x), d, reinterpret_cast<hwy::float16_t*>(p));
}
#endif

// The first `lanes` elements; the others are zero, and memory behind them is not touched.
template <class T>
HWY_INLINE VF LoadFirst(const T* p, Index lanes) {
  T part[kLanes] = {};
  std::memcpy(part, p, static_cast<std::size_t>(std::min(lanes, kLanes)) * sizeof(T));
  return Load(part);
}
template <class T>
HWY_INLINE void StoreFirst(VF x, T* p, Index lanes) {
  T part[kLanes];
  Store(x, part);
  std::memcpy(p, part, static_cast<std::size_t>(std::min(lanes, kLanes)) * sizeof(T));
}

// max(x, low) + shift serves relu, relu_eps and identity alike.
struct Map {
  float low = -std::numeric_limits<float>::infinity(), shift = 0;
  bool elu = false;

  Map() = default;  // identity
  explicit Map(FeatureMap map) {
    if (map == FeatureMap::relu_eps || map == FeatureMap::relu) low = 0;
    if (map == FeatureMap::relu_eps) shift = static_cast<float>(kReluEps);
    elu = map == FeatureMap::elu1;
  }
};

template <bool kElu>
HWY_INLINE VF Apply(VF x, VF low, VF shift) {
  const DF d;
  if constexpr (kElu) {
    const VF negative = hn::Exp(d, hn::Min(x, hn::Zero(d)));
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Add(x, hn::Set(d, 1.0f)), negative);
  } else {
    // A NaN stays: as the second operand of the machine's maximum, which Highway's own lacks.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
    return hn::Add(hn::IfThenElse(hn::Lt(x, low), low, x), shift);
#else
    return hn::Add(hn::Max(low, x), shift);
#endif
  }
}

// Token rows of one tensor, in the order of `at`.
template <class T>
struct Source {
  const Rows& rows;
  const Index* at;
  Index count, width;
  Map map = {};
  const T* row(Index t) const {
    return reinterpret_cast<const T*>(rows.data) + at[t] * rows.stride;
  }
};

// Where vector x of row t goes: data[x] + t * stride[x].
struct Target {
  float* data[4];
  Index stride[4];
};

// What is computed of the mapped rows beside their copy.
struct Also {
  float* sums = nullptr;        // [width padded] += sum over rows
  const float* with = nullptr;  // [width padded]
  float* dots = nullptr;        // [count] = or += <row, with>
};

// NOTE: token rows of a fused projection lie pages apart, where no hardware prefetcher follows.
inline constexpr Index kRowsAhead = 8;

template <class T, bool kElu, int kVecs, bool kSums, bool kDots>
HWY_NOINLINE void PackStrip(const Source<T>& from, Index first, Index tail, const Target& to,
                            const Also& also) {
  const DF d;
  const VF low = hn::Set(d, from.map.low), shift = hn::Set(d, from.map.shift);
  VF sum[kVecs], with[kVecs];
  float* data[kVecs];
  Index stride[kVecs];
#pragma GCC unroll 4
  for (int x = 0; x < kVecs; ++x) {
    data[x] = to.data[x];
    stride[x] = to.stride[x];
    sum[x] = kSums ? Load(also.sums + first + x * kLanes) : hn::Zero(d);
    with[x] = kDots ? Load(also.with + first + x * kLanes) : hn::Zero(d);
  }
  for (Index t = 0; t < from.count; ++t) {
    const T* row = from.row(t) + first;
    if (t + kRowsAhead < from.count) {
      constexpr Index kBytes = kVecs * kLanes * Index{sizeof(T)};
      const char* ahead = reinterpret_cast<const char*>(from.row(t + kRowsAhead) + first);
#pragma GCC unroll 4
      for (Index byte = 0; byte < kBytes; byte += 64) hwy::Prefetch(ahead + byte);
      hwy::Prefetch(ahead + kBytes - 1);  // rows need not begin at a cache line
    }
    VF dot = hn::Zero(d);
#pragma GCC unroll 4
    for (int x = 0; x < kVecs; ++x) {
      VF value;
      if (kVecs == 1 && tail) {
        value = Apply<kElu>(LoadFirst(row, tail), low, shift);
        value = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(tail)), value);
      } else {
        value = Apply<kElu>(Load(row + x * kLanes), low, shift);
      }
      if (kSums) sum[x] = hn::Add(sum[x], value);
      if (kDots) dot = hn::MulAdd(value, with[x], dot);
      Store(value, data[x]);
      data[x] += stride[x];
    }
    if (kDots) {
      const float total = hn::GetLane(hn::SumOfLanes(d, dot));
      also.dots[t] = first == 0 ? total : also.dots[t] + total;
    }
  }
#pragma GCC unroll 4
  for (int x = 0; x < kVecs; ++x) {
    if (kSums) Store(sum[x], also.sums + first + x * kLanes);
  }
}

template <class T, int kVecs>
HWY_INLINE void PackStrip(const Source<T>& from, Index first, Index tail, const Target& to,
                          const Also& also) {
  const auto with_map = [&]<bool kElu>(std::bool_constant<kElu>) HWY_ATTR {
    if (also.sums) PackStrip<T, kElu, kVecs, true, false>(from, first, tail, to, also);
    else if (also.dots) PackStrip<T, kElu, kVecs, false, true>(from, first, tail, to, also);
    else PackStrip<T, kElu, kVecs, false, false>(from, first, tail, to, also);
  };
  if (from.map.elu) with_map(std::true_type{});
  else with_map(std::false_type{});
}

// Row-major chunks, or panels; columns up to a whole vector are zero.
template <class T>
void Pack(const Source<T>& from, bool as_panels, float* to, const Also& also = {}) {
  const Panels panels(from.width);
  for (Index first = 0; first < from.width;) {
    const Index left = from.width - first;
    const Index tail = left < kLanes ? left : 0;
    // A strip stays inside a chunk, since 4 vectors divide it.
    const Index vecs = left >= 4 * kLanes ? 4 : left >= 2 * kLanes ? 2 : 1;
    Target target;
    for (Index x = 0; x < vecs; ++x) {
      const Index column = first + x * kLanes;
      if (as_panels) {
        const Index j = column / kPanel;
        target.stride[x] = panels.width(j);
        target.data[x] = to + panels.offset(j, from.count) + column % kPanel;
      } else {
        target.stride[x] = kRowStride;
        target.data[x] = to + column / kChunk * (kTokens * kRowStride) + column % kChunk;
      }
    }
    if (vecs == 4) PackStrip<T, 4>(from, first, 0, target, also);
    else if (vecs == 2) PackStrip<T, 2>(from, first, 0, target, also);
    else PackStrip<T, 1>(from, first, tail, target, also);
    first += vecs * kLanes;
  }
}
template <class T>
void PackRows(const Source<T>& from, float* to, const Also& also = {}) {
  Pack(from, false, to, also);
}
template <class T>
void PackPanels(const Source<T>& from, float* to, const Also& also = {}) {
  Pack(from, true, to, also);
}

// The same where kNative machines have an instruction for it. NOTE: intrinsics of it would need
// functions of their own, since gcc inlines none into functions that other machines run as well.
template <bool kNative, class T>
HWY_INLINE void StoreAs(VF x, T* p) {
#if MHLA_CPU_PAIRS
  if constexpr (kNative && std::is_same_v<T, BFloat16>) {
    __m256i words;
    asm("vcvtneps2bf16 %1, %0" : "=v"(words) : "v"(x.raw));
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
  }
#endif
  Store(x, p);
}

// f32 rows [count, stride] to token rows.
template <class T, bool kNative = false>
void Unpack(const float* from, Index stride, const Rows& rows, const Index* at, Index count,
            Index width) {
  for (Index t = 0; t < count; ++t) {
    T* to = reinterpret_cast<T*>(rows.data) + at[t] * rows.stride;
    Index x = 0;
    for (; x + kLanes <= width; x += kLanes) StoreAs<kNative>(Load(from + t * stride + x), to + x);
    if (x < width) StoreFirst(Load(from + t * stride + x), to + x, width - x);
  }
}

// Token numbers of `count` positions of a block, from position `begin` on.
HWY_INLINE void ListTokens(const Block& block, Index begin, Index count, Index* at) {
  Index x = begin % block.extent[2], y = begin / block.extent[2] % block.extent[1];
  Index a = begin / block.extent[2] / block.extent[1];
  for (Index t = 0; t < count; ++t) {
    at[t] = block.first + a * block.stride[0] + y * block.stride[1] + x;
    if (++x < block.extent[2]) continue;
    x = 0;
    if (++y < block.extent[1]) continue;
    y = 0;
    ++a;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_PACK_INL_H_
