// AMX-BF16: the same tiles of pairs on 16 x 16 matrix registers.
//
// Operands are those of the dot-product instructions: A row-major pairs and B panels are tile
// registers as they lie in memory; a k-major A is turned 16 x 16 at a time.
#if defined(MHLA_CPU_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_AMX_INL_H_
#undef MHLA_CPU_AMX_INL_H_
#else
#define MHLA_CPU_AMX_INL_H_
#endif

#include "mhla/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

#if MHLA_CPU_AMX
#define MHLA_AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))

// Registers 0 and 1 are the result, 2 is A, 3 and 4 are B; 5 to 7 the same of a last step with
// fewer pairs.
struct alignas(64) AmxShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};  // of a row
  std::uint8_t rows[16] = {};

  explicit AmxShapes(Index tail) {
    for (int t = 0; t < 8; ++t) bytes[t] = 64, rows[t] = 16;
    if (tail == 0) return;
    bytes[5] = static_cast<std::uint16_t>(4 * tail);
    rows[6] = rows[7] = static_cast<std::uint8_t>(tail);
  }
};

// Of this thread, while a call runs: the pairs of the last step that its registers are shaped for.
inline constexpr Index kNoShape = -1;
struct Amx {
  bool on = false;
  Index tail = kNoShape;
};
inline thread_local Amx amx;

MHLA_AMX_TARGET inline void ShapeRegisters(Index tail) {
  if (amx.tail == tail) return;
  const AmxShapes shapes(tail);
  _tile_loadconfig(&shapes);
  amx.tail = tail;
}
MHLA_AMX_TARGET inline void ReleaseRegisters() {
  if (amx.tail != kNoShape) _tile_release();
  amx = {};
}

// NOTE: kAmxRows rows of A are read where there are less: they are memory of the same workspace,
// and what comes of them is not stored.
template <int kRows, int kVecs, bool kKMajor>
HWY_NOINLINE MHLA_AMX_TARGET void AmxTile(const Term* terms, int count, const TileOut& out) {
  constexpr Index kStep = 16;  // pairs
  HWY_ALIGN float turned[kStep * kStep];
  HWY_ALIGN float last[kStep * kStep] = {};  // a last step, without rows behind the end
  HWY_ALIGN float result[kVecs][kStep * kLanes];
  const auto a_of = [&](const Term& term, Index k, Index pairs) HWY_ATTR -> const float* {
    if (!kKMajor) return term.a + k;
    const float* from = term.a + k * term.lda;
    if (pairs == kStep) {
      TransposeSquare(from, term.lda, turned, kStep);
    } else {
      for (Index p = 0; p < pairs; ++p) {
        hn::StoreU(hn::LoadU(DF(), from + p * term.lda), DF(), last + p * kStep);
      }
      TransposeSquare(last, kStep, turned, kStep);
    }
    return turned;
  };
  constexpr Index kBytes = 4, kStride = (kKMajor ? kStep : kRowStride) * kBytes;
  Index tail = 0;  // the same shapes serve all whole steps
  for (int t = 0; t < count; ++t) tail = terms[t].k % kStep ? terms[t].k % kStep : tail;
  ShapeRegisters(tail);
  _tile_zero(0);
  _tile_zero(1);
  for (int t = 0; t < count; ++t) {
    const Term& term = terms[t];
    Index k = 0;
    for (; k + kStep <= term.k; k += kStep) {
      const float* b = term.b + k * term.ldb;
      _tile_loadd(2, a_of(term, k, kStep), kStride);
      _tile_loadd(3, b, term.ldb * kBytes);
      _tile_dpbf16ps(0, 2, 3);
      if constexpr (kVecs == 2) {
        _tile_loadd(4, b + kLanes, term.ldb * kBytes);
        _tile_dpbf16ps(1, 2, 4);
      }
    }
    if (k == term.k) continue;
    if (term.k - k != tail) {  // two summands with ends of their own: the result moves over
      _tile_stored(0, result[0], 64);
      if constexpr (kVecs == 2) _tile_stored(1, result[kVecs - 1], 64);
      tail = term.k - k;
      ShapeRegisters(tail);
      _tile_loadd(0, result[0], 64);
      if constexpr (kVecs == 2) _tile_loadd(1, result[kVecs - 1], 64);
    }
    const float* b = term.b + k * term.ldb;
    _tile_loadd(5, a_of(term, k, tail), kStride);
    _tile_loadd(6, b, term.ldb * kBytes);
    _tile_dpbf16ps(0, 5, 6);
    if constexpr (kVecs == 2) {
      _tile_loadd(7, b + kLanes, term.ldb * kBytes);
      _tile_dpbf16ps(1, 5, 7);
    }
  }
  _tile_stored(0, result[0], 64);
  if constexpr (kVecs == 2) _tile_stored(1, result[kVecs - 1], 64);
  VF acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(DF(), result[v] + r * kLanes);
  }
  StorePairTile(acc, out);
}

template <int kVecs, bool kKMajor, int... kRows>
constexpr std::array<TileFunction, sizeof...(kRows)> AmxTable(
    std::integer_sequence<int, kRows...>) {
  return {&AmxTile<kRows + 1, kVecs, kKMajor>...};
}
template <bool kKMajor>
HWY_INLINE TileFunction AmxTileFor(Index rows, Index columns) {
  using Rows = std::make_integer_sequence<int, kMaxRows>;
  static constexpr auto kOne = AmxTable<1, kKMajor>(Rows{});
  static constexpr auto kTwo = AmxTable<2, kKMajor>(Rows{});
  return (columns > kLanes ? kTwo : kOne)[static_cast<std::size_t>(rows - 1)];
}
#endif  // MHLA_CPU_AMX

// The tile of a product: kPairs takes the matrix registers where this call uses them.
template <bool kKMajor, bool kPairs>
HWY_INLINE TileFunction BestTileFor(Index rows, Index columns) {
#if MHLA_CPU_AMX
  if constexpr (kPairs) {
    if (amx.on) return AmxTileFor<kKMajor>(rows, columns);
  }
#endif
  return TileFor<kKMajor, kPairs>(rows, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_AMX_INL_H_
