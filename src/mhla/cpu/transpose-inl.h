// Transposing packed operands, a square of vectors at a time.
#if defined(MHLA_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_TRANSPOSE_INL_H_
#undef MHLA_CPU_TRANSPOSE_INL_H_
#else
#define MHLA_CPU_TRANSPOSE_INL_H_
#endif

#include "mhla/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// Pairs of rows, then pairs of pairs, inside 128-bit parts; then the parts themselves.
HWY_INLINE void TransposeSquare(const float* from, Index from_stride, float* to, Index to_stride) {
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto lower = [](__m512 a, __m512 b) HWY_ATTR {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto upper = [](__m512 a, __m512 b) HWY_ATTR {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = lower(t[i], t[i + 2]);
    r[i + 1] = upper(t[i], t[i + 2]);
    r[i + 2] = lower(t[i + 1], t[i + 3]);
    r[i + 3] = upper(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
  }
}
#else
HWY_INLINE void TransposeSquare(const float* from, Index from_stride, float* to, Index to_stride) {
  for (Index r = 0; r < kLanes; ++r) {
    for (Index c = 0; c < kLanes; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
}
#endif

// to[c, r] = from(r, c) for a source of up to a vector of rows; missing rows are zero.
HWY_INLINE void TransposeStrip(const float* from, Index from_stride, Index rows, Index columns,
                               float* to, Index to_stride) {
  Index c = 0;
  if (rows == kLanes) {
    for (; c + kLanes <= columns; c += kLanes) {
      TransposeSquare(from + c, from_stride, to + c * to_stride, to_stride);
    }
  }
  for (; c < columns; ++c) {
    for (Index r = 0; r < kLanes; ++r) {
      to[c * to_stride + r] = r < rows ? from[r * from_stride + c] : 0.0f;
    }
  }
}

// Row-major [count, width] to panels [width, count]; columns up to a whole vector are zero.
inline void TransposeRows(const float* rows, Index count, Index width, float* to) {
  const Panels panels(count);
  for (Index t = 0; t < panels.columns; t += kLanes) {
    const Index j = t / kPanel, step = panels.width(j);
    float* strip = to + panels.offset(j, width) + t % kPanel;
    for (Index x = 0; x < width; x += kChunk) {
      TransposeStrip(rows + x / kChunk * (kTokens * kRowStride) + t * kRowStride, kRowStride,
                     std::min(kLanes, count - t), std::min(kChunk, width - x), strip + x * step,
                     step);
    }
  }
}

// Panels [rows, width] to panels [width, rows].
inline void TransposePanels(const float* from, Index rows, Index width, float* to) {
  const Panels source(width), target(rows);
  for (Index r = 0; r < target.columns; r += kLanes) {
    const Index k = r / kPanel, step = target.width(k);
    float* strip = to + target.offset(k, width) + r % kPanel;
    for (Index j = 0; j < source.count; ++j) {
      TransposeStrip(from + source.offset(j, rows) + r * source.width(j), source.width(j),
                     std::min(kLanes, rows - r), std::min(source.width(j), width - j * kPanel),
                     strip + j * kPanel * step, step);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_TRANSPOSE_INL_H_
