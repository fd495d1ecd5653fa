// The operations of a stream with SIMD: f32 sums, inputs and outputs of any storage type.
#if defined(MHLA_CPU_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_STATE_INL_H_
#undef MHLA_CPU_STATE_INL_H_
#else
#define MHLA_CPU_STATE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <utility>

#include "mhla/core/state_host.h"
#include "mhla/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// Calls f<n>() for n vectors, the widest strips first, until `columns` are covered.
template <int kWidest, class F>
HWY_INLINE void EachStrip(Index columns, F&& f) {
  Index at = 0;
  while (columns - at >= kWidest * kLanes) {
    f(std::integral_constant<int, kWidest>{}, at);
    at += kWidest * kLanes;
  }
  if constexpr (kWidest > 1) {
    for (Index vecs = (columns - at) / kLanes; vecs > 0; --vecs, at += kLanes) {
      f(std::integral_constant<int, 1>{}, at);
    }
  }
}

template <class E, bool kElu>
HWY_NOINLINE void LoadMapped(const E* from, Index count, const Map& map, float* row) {
  const DF d;
  const VF low = hn::Set(d, map.low), shift = hn::Set(d, map.shift);
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(Apply<kElu>(Load(from + i), low, shift), d, row + i);
  }
  if (i < count) {
    const VF x = Apply<kElu>(LoadFirst(from + i, count - i), low, shift);
    const auto valid = hn::FirstN(d, static_cast<std::size_t>(count - i));
    hn::StoreU(hn::IfThenElseZero(valid, x), d, row + i);
    i += kLanes;
  }
  for (; i < round_up(count, 16); i += kLanes) hn::StoreU(hn::Zero(d), d, row + i);
}

template <class E>
HWY_NOINLINE void StoreDivided(const float* row, float scale, float divisor, Index count, E* to) {
  const DF d;
  const VF by = hn::Set(d, divisor == 0 ? 1.0f : divisor);
  const VF times = hn::Set(d, divisor == 0 ? 0.0f : scale);
  const bool zero = divisor == 0;
  for (Index i = 0; i < count; i += kLanes) {
    VF x = hn::Div(hn::Mul(hn::LoadU(d, row + i), times), by);
    if (zero) x = hn::Zero(d);
    if (i + kLanes <= count) Store(x, to + i);
    else StoreFirst(x, to + i, count - i);
  }
}

HWY_NOINLINE float DotRows(const float* a, const float* b, Index count) {
  const DF d;
  VF sum = hn::Zero(d), more = hn::Zero(d);
  Index i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
    more = hn::MulAdd(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes), more);
  }
  for (; i < count; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum, more)));
}

HWY_NOINLINE void AddScaled(float weight, const float* x, float* sum, Index count) {
  const DF d;
  const VF w = hn::Set(d, weight);
  for (Index i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::MulAdd(w, hn::LoadU(d, x + i), hn::LoadU(d, sum + i)), d, sum + i);
  }
}

template <int kVecs>
HWY_INLINE void RowTimesStrip(const float* q, const float* matrix, Index rows, Index stride,
                              float* out) {
  const DF d;
  VF sum[kVecs];
#pragma GCC unroll 16
  for (int x = 0; x < kVecs; ++x) sum[x] = hn::Zero(d);
  for (Index c = 0; c < rows; ++c) {
    const VF weight = hn::Set(d, q[c]);
    const float* row = matrix + c * stride;
#pragma GCC unroll 16
    for (int x = 0; x < kVecs; ++x) {
      sum[x] = hn::MulAdd(weight, hn::LoadU(d, row + x * kLanes), sum[x]);
    }
  }
#pragma GCC unroll 16
  for (int x = 0; x < kVecs; ++x) hn::StoreU(sum[x], d, out + x * kLanes);
}

// Whole rows of up to 256 numbers where the registers allow it: the matrix is read in one stream.
inline constexpr int kRowVecs = kMaxRows > 6 ? 16 : 8;

HWY_NOINLINE void RowTimesMatrix(const float* q, const float* matrix, Index rows, Index columns,
                                 float* out) {
  EachStrip<kRowVecs>(columns, [&](auto vecs, Index at) HWY_ATTR {
    RowTimesStrip<decltype(vecs)::value>(q, matrix + at, rows, columns, out + at);
  });
}

struct FoldCall {
  const float* const* keys;
  const float* const* values;
  Index rows, stride;
  float own;
  float *s, *r;
};

// Up to kTokens tokens into kVecs vectors of columns; the values stay in registers.
template <int kTokens, int kVecs>
HWY_NOINLINE void FoldStrip(const FoldCall& call, Index token, Index at) {
  const DF d;
  const float* keys[kTokens];
  VF value[kTokens][kVecs];
#pragma GCC unroll 8
  for (int u = 0; u < kTokens; ++u) {
    keys[u] = call.keys[token + u];
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) {
      value[u][x] = hn::LoadU(d, call.values[token + u] + at + x * kLanes);
    }
  }
  const VF own = hn::Set(d, call.own);
  float* s = call.s + at;
  float* r = call.r ? call.r + at : nullptr;
  // NOTE: rows are far apart, and S has been pushed out of the nearest caches since last time.
  constexpr Index kRowsAhead = 12;
  for (Index c = 0; c < call.rows; ++c) {
    if (c + kRowsAhead < call.rows) {
      hwy::Prefetch(s + (c + kRowsAhead) * call.stride);
      if (kVecs * kLanes > 16) hwy::Prefetch(s + (c + kRowsAhead) * call.stride + 16);
      if (r) {
        hwy::Prefetch(r + (c + kRowsAhead) * call.stride);
        if (kVecs * kLanes > 16) hwy::Prefetch(r + (c + kRowsAhead) * call.stride + 16);
      }
    }
    VF sum[kVecs];
    const VF first = hn::Set(d, keys[0][c]);
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) sum[x] = hn::Mul(first, value[0][x]);
#pragma GCC unroll 8
    for (int u = 1; u < kTokens; ++u) {
      const VF key = hn::Set(d, keys[u][c]);
#pragma GCC unroll 2
      for (int x = 0; x < kVecs; ++x) sum[x] = hn::MulAdd(key, value[u][x], sum[x]);
    }
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) {
      float* to = s + c * call.stride + x * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum[x]), d, to);
      if (r) {
        float* also = r + c * call.stride + x * kLanes;
        hn::StoreU(hn::MulAdd(own, sum[x], hn::LoadU(d, also)), d, also);
      }
    }
  }
}

// AVX2 and NEON narrower than 32 registers keep one vector of each of 8 tokens.
inline constexpr int kFoldVecs = kMaxRows > 6 ? 2 : 1;

HWY_INLINE void FoldColumns(const FoldCall& call, Index tokens, Index columns) {
  Index u = 0;
  const auto strips = [&](auto count) HWY_ATTR {
    EachStrip<kFoldVecs>(columns, [&](auto vecs, Index at) HWY_ATTR {
      FoldStrip<decltype(count)::value, decltype(vecs)::value>(call, u, at);
    });
    u += count.value;
  };
  while (tokens - u >= 8) strips(std::integral_constant<int, 8>{});
  if (tokens - u >= 4) strips(std::integral_constant<int, 4>{});
  if (tokens - u >= 2) strips(std::integral_constant<int, 2>{});
  if (tokens - u >= 1) strips(std::integral_constant<int, 1>{});
}

// Products walk over panels of B, two vectors wide, copied together: rows of B lie a power of two
// apart and would fall into the same few sets of the nearest cache.
inline constexpr Index kPanelDepth = 256;

struct PanelCall {
  const streaming::Product<float>& p;
  const float* panel;  // [depth, 2 vectors]
  Index n;             // first column
  Index k, depth;      // part of the depth
};

// kRows rows by one panel.
template <int kRows, int kVecs>
HWY_NOINLINE void ProductTile(const PanelCall& call, Index m, Index depth) {
  const DF d;
  const streaming::Product<float>& p = call.p;
  VF sum[kRows][kVecs];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) sum[r][x] = hn::Zero(d);
  }
  const Index a_row = p.a_row, a_column = p.a_column;
  const float* a = p.a + m * a_row + call.k * a_column;
  const float* b = call.panel;
  for (Index k = 0; k < depth; ++k) {
    VF column[kVecs];
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) column[x] = hn::LoadU(d, b + x * kLanes);
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      const VF weight = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 2
      for (int x = 0; x < kVecs; ++x) sum[r][x] = hn::MulAdd(weight, column[x], sum[r][x]);
    }
    a += a_column;
    b += 2 * kLanes;
  }
  const bool add = p.add || call.k > 0;
  const VF also_weight = hn::Set(d, p.also_weight);
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    const Index at = (m + r) * p.ldc + call.n;
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) {
      float* c = p.c + at + x * kLanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, c), sum[r][x]) : sum[r][x], d, c);
      if (p.also) {
        float* also = p.also + at + x * kLanes;
        hn::StoreU(hn::MulAdd(also_weight, sum[r][x], hn::LoadU(d, also)), d, also);
      }
    }
  }
}

using ProductFunction = void (*)(const PanelCall&, Index, Index);
template <int kVecs, int... kRows>
HWY_INLINE ProductFunction ProductTileFor(Index rows, std::integer_sequence<int, kRows...>) {
  static constexpr ProductFunction kTiles[] = {ProductTile<kRows + 1, kVecs>...};
  return kTiles[rows - 1];
}

HWY_INLINE void MultiplyMatrices(const streaming::Product<float>& p) {
  alignas(64) float panel[kPanelDepth * 2 * kLanes];
  const DF d;
  const Index tiles = (p.rows + kMaxRows - 1) / kMaxRows;  // as even as they get
  for (Index k = 0; k < p.depth; k += kPanelDepth) {
    const Index depth = std::min<Index>(kPanelDepth, p.depth - k);
    EachStrip<2>(p.columns, [&](auto vecs, Index n) HWY_ATTR {
      constexpr int kVecs = decltype(vecs)::value;
      for (Index i = 0; i < depth; ++i) {
        const float* row = p.b + (k + i) * p.ldb + n;
        for (int x = 0; x < kVecs; ++x) {
          hn::StoreU(hn::LoadU(d, row + x * kLanes), d, panel + (i * 2 + x) * kLanes);
        }
      }
      const PanelCall call{p, panel, n, k, depth};
      for (Index tile = 0; tile < tiles; ++tile) {
        const Index m = tile * p.rows / tiles, end = (tile + 1) * p.rows / tiles;
        const Index used = p.triangle ? std::clamp<Index>(end - k, 0, depth) : depth;
        ProductTileFor<kVecs>(end - m, std::make_integer_sequence<int, kMaxRows>())(call, m, used);
      }
    });
  }
}

using MixCall = streaming::MixPart<float>;

inline constexpr Index kMixAhead = 128;  // numbers

// kRows mixtures of kVecs vectors: every source is loaded once for all of them.
template <int kRows, int kVecs>
HWY_NOINLINE void MixStrip(const MixCall& call, Index row, Index begin, Index end) {
  const DF d;
  const float* weights = call.weights + row * call.stride;
  for (Index at = begin; at < end; at += kVecs * kLanes) {
    const Index offset = call.offset + at;
    VF sum[kRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVecs; ++x) {
        sum[r][x] = call.add ? hn::LoadU(d, call.to[row + r] + offset + x * kLanes) : hn::Zero(d);
      }
    }
    for (Index s = 0; s < call.sources; ++s) {
      const float* from = static_cast<const float*>(call.from[s]) + offset;
      // NOTE: no hardware prefetcher follows sixteen streams, a strip of each at a time.
#pragma GCC unroll 4
      for (Index ahead = 0; ahead < kVecs * kLanes; ahead += 16) {
        hwy::Prefetch(from + kMixAhead + ahead);
      }
      VF source[kVecs];
#pragma GCC unroll 8
      for (int x = 0; x < kVecs; ++x) source[x] = hn::LoadU(d, from + x * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const VF weight = hn::Set(d, weights[r * call.stride + s]);
#pragma GCC unroll 8
        for (int x = 0; x < kVecs; ++x) sum[r][x] = hn::MulAdd(weight, source[x], sum[r][x]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVecs; ++x) {
        hn::StoreU(sum[r][x], d, call.to[row + r] + offset + x * kLanes);
      }
    }
  }
}

template <int kRows, int kVecs>
HWY_INLINE void MixRows(const MixCall& call, Index row, Index count) {
  const Index whole = count / (kVecs * kLanes) * (kVecs * kLanes);
  if (whole > 0) MixStrip<kRows, kVecs>(call, row, 0, whole);
  if (whole < count) MixStrip<kRows, 1>(call, row, whole, count);
}

// Rows whose sums fit the registers beside one another, two vectors each.
inline constexpr int kTileRows = kMaxRows > 6 ? 8 : 4;

// Mixtures of many rows, an item of a wide group: two vectors of columns at a time, which the first
// rows leave in a panel for the others while the next columns are fetched.
// NOTE: in place they lie whole pages apart, most of them in the same few sets of the nearest
// cache.
inline constexpr Index kStrip = 2 * kLanes;

// Columns of some sources that are wanted soon.
struct WideAhead {
  const void* const* from;
  Index sources, offset;
};

template <int kVecs, bool kFill>
HWY_NOINLINE void WideTile(const MixCall& mix, float* panel, Index row, Index at,
                           const WideAhead& ahead) {
  const DF d;
  const Index stride = mix.stride, offset = mix.offset + at;
  const float* weights = mix.weights + row * stride;
  float* const* to = mix.to + row;
  VF sum[kTileRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) {
      sum[r][x] = mix.add ? hn::LoadU(d, to[r] + offset + x * kLanes) : hn::Zero(d);
    }
  }
  for (Index s = 0; s < mix.sources; ++s, panel += kStrip) {
    if (s < ahead.sources) {
      // NOTE: not into the further caches, where they would displace what every step reads.
      const float* next = static_cast<const float*>(ahead.from[s]) + ahead.offset;
      __builtin_prefetch(next, 0, 0);
      if (kStrip > 16) __builtin_prefetch(next + 16, 0, 0);
    }
    VF source[kVecs];
    const float* column = kFill ? static_cast<const float*>(mix.from[s]) + offset : panel;
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) {
      source[x] = hn::LoadU(d, column + x * kLanes);
      if (kFill) hn::StoreU(source[x], d, panel + x * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const VF weight = hn::Set(d, weights[r * stride + s]);
#pragma GCC unroll 2
      for (int x = 0; x < kVecs; ++x) sum[r][x] = hn::MulAdd(weight, source[x], sum[r][x]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int x = 0; x < kVecs; ++x) hn::StoreU(sum[r][x], d, to[r] + offset + x * kLanes);
  }
}

// Rows [0, rows), whole tiles; at most kWideChunk sources.
HWY_INLINE void MixThroughPanel(const MixCall& mix, Index rows) {
  alignas(64) float panel[streaming::kWideChunk * kStrip];
  const Index tiles = rows / kTileRows;
  EachStrip<2>(mix.count, [&](auto vecs, Index at) HWY_ATTR {
    constexpr int kVecs = decltype(vecs)::value;
    const bool last = at + kVecs * kLanes >= mix.count;
    const Index wanted = last ? mix.next_sources : mix.sources;
    for (Index tile = 0; tile < tiles; ++tile) {
      const Index begin = tile * wanted / tiles;
      const WideAhead ahead{(last ? mix.next : mix.from) + begin,
                            (tile + 1) * wanted / tiles - begin,
                            last ? mix.ahead : mix.offset + at + kVecs * kLanes};
      if (tile == 0) WideTile<kVecs, true>(mix, panel, 0, at, ahead);
      else WideTile<kVecs, false>(mix, panel, tile * kTileRows, at, ahead);
    }
  });
}

struct StateOps {
  using T = float;

  static void load(const void* from, DType dtype, Index count, FeatureMap feature_map, float* row) {
    const Map map(feature_map);
    with_dtype(dtype, [&](auto tag) {
      using E = decltype(tag);
      if constexpr (!std::is_same_v<E, double>) {
        const E* source = static_cast<const E*>(from);
        if (map.elu) LoadMapped<E, true>(source, count, map, row);
        else LoadMapped<E, false>(source, count, map, row);
      }
    });
  }
  static void store(const float* row, float scale, float divisor, Index count, DType dtype,
                    void* to) {
    with_dtype(dtype, [&](auto tag) {
      using E = decltype(tag);
      if constexpr (!std::is_same_v<E, double>) {
        StoreDivided(row, scale, divisor, count, static_cast<E*>(to));
      }
    });
  }
  static float dot(const float* a, const float* b, Index count) { return DotRows(a, b, count); }
  static void add_scaled(float weight, const float* x, float* sum, Index count) {
    AddScaled(weight, x, sum, count);
  }
  static void row_times_matrix(const float* q, const float* matrix, Index rows, Index columns,
                               float* out) {
    RowTimesMatrix(q, matrix, rows, columns, out);
  }
  static void fold(const float* const* keys, const float* const* values, Index tokens, Index rows,
                   Index columns, Index stride, float own, float* s, float* r) {
    FoldColumns({keys, values, rows, stride, own, s, r}, tokens, columns);
  }
  static void product(const streaming::Product<float>& p) { MultiplyMatrices(p); }
  static void mix(const streaming::MixPart<float>& part) {
    Index row = 0;
    if (part.rows > 8) {
      row = part.rows / kTileRows * kTileRows;
      MixThroughPanel(part, row);
    }
    for (; row + kTileRows <= part.rows; row += kTileRows) {
      MixRows<kTileRows, 2>(part, row, part.count);
    }
    for (; row < part.rows; ++row) MixRows<1, 4>(part, row, part.count);
  }
  static int threads(Index bytes, Index units);
  template <typename F>
  static void each(int threads, const streaming::Units& units, F&& f);
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_STATE_INL_H_
