// Products over packed operands, tile by tile: S = K^T V, mixing, read-out.
#if defined(MHLA_CPU_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_PRODUCT_INL_H_
#undef MHLA_CPU_PRODUCT_INL_H_
#else
#define MHLA_CPU_PRODUCT_INL_H_
#endif

#include "mhla/core/half.h"
#include "mhla/cpu/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// A set of flattened summaries laid out for mixing: [group, block, panel of the group, two
// vectors].
struct Stack {
  static constexpr Index kStride = kGroup * kPanel;  // between blocks
  float* data;
  Index blocks;

  Stack(float* memory, Index count) : data(memory), blocks(count) {}
  float* panel(Index p, Index block) const {
    return data + (p / kGroup * blocks + block) * kStride + p % kGroup * kPanel;
  }
  float* at(Index flat, Index block) const { return panel(flat / kPanel, block) + flat % kPanel; }
  Index group_stride() const { return blocks * kStride; }
};

// Where a product puts a summary matrix of one block: row r of column panel c.
struct SummaryPlace {
  const Stack& stack;
  Index block, rows;
  Panels panels;
  bool halved = false;  // `rows` are pairs

  float* operator()(Index r, Index c) const {
    return stack.at(c * rows + r * panels.width(c / kPanel), block);
  }
  // Neighbouring rows of a whole panel are neighbouring panels of the flattened block.
  HWY_INLINE void Fill(Index first, Index height, Index c, float** to) const {
    if (panels.width(c / kPanel) < kPanel) {
      for (Index r = 0; r < height; ++r) to[r] = (*this)(first + r, c);
      return;
    }
    const Index panel = c / kPanel * rows + first;
    float* at = stack.panel(panel, block);
    Index left = kGroup - panel % kGroup;
    for (Index r = 0; r < height; ++r, at += kPanel) {
      if (left-- == 0) at += stack.group_stride() - Stack::kStride, left = kGroup - 1;
      to[r] = at;
    }
  }
};

// Panels p0..p1 of one block, one behind the other.
inline HWY_NOINLINE void Gather(const Stack& stack, Index block, Index p0, Index p1, float* to) {
  const DF d;
  for (Index p = p0; p < p1;) {
    const float* from = stack.panel(p, block);
    const Index end = std::min(p1, (p / kGroup + 1) * kGroup);
    for (int line = 0; line < kGroup * kPanel; line += 16) {  // the same part of the next group
      __builtin_prefetch(from + 2 * stack.group_stride() + line, 0, 2);
    }
    for (; p < end; ++p, from += kPanel, to += kPanel) {
      hn::StoreU(hn::LoadU(d, from), d, to);
      hn::StoreU(hn::LoadU(d, from + kLanes), d, to + kLanes);
    }
  }
}

// Rows that the next piece of work will read, or this one will write: fetched into L2 a few at a
// time between tiles. NOTE: the rows of a fused projection lie pages apart, where no hardware
// prefetcher follows.
class Ahead {
 public:
  Ahead(const Index* at, Index count) : at_(at), count_(count) {}  // no list: 0, 1, ...
  Ahead& Add(const Rows& rows, Index width, Index element) {
    if (rows.data) streams_[used_++] = {rows.data, rows.stride * element, width * element};
    return *this;
  }
  // Blocks of a stack, group after group.
  Ahead& Add(const Stack& stack, Index first_panel) {
    constexpr Index kBytes = Stack::kStride * Index{sizeof(float)};
    streams_[used_++] = {reinterpret_cast<const char*>(stack.panel(first_panel, 0)), kBytes,
                         kBytes};
    return *this;
  }
  void Begin(Index tiles) { per_tile_ = (count_ - next_ + tiles - 1) / std::max<Index>(tiles, 1); }
  void Step() {
    for (const Index end = std::min(count_, next_ + per_tile_); next_ < end; ++next_) {
      for (int s = 0; s < used_; ++s) {
        const char* row = streams_[s].data + (at_ ? at_[next_] : next_) * streams_[s].stride;
        const char* end_of_row = row + streams_[s].bytes;
        row -= reinterpret_cast<std::uintptr_t>(row) % 64;  // each line once, wherever rows begin
        for (; row < end_of_row; row += 64) __builtin_prefetch(row, 0, 2);
      }
    }
  }

 private:
  struct Stream {
    const char* data;
    Index stride, bytes;
  };
  Stream streams_[8];
  int used_ = 0;
  const Index* at_;
  Index count_, next_ = 0, per_tile_ = 0;
};

// One row-major operand times a panel matrix [k, columns], as a summand of MultiplyRows.
struct RowSummand {
  const float* a;  // row-major chunks of kTokens rows
  Index k;
  const float* b;
  Index b_rows;  // rows of the panel matrix, k unless only a part is used
  bool triangle =
      false;       // row r uses the first r + 1 of the k columns; the rest of its tile is zero
  Index from = 0;  // columns before it are left out
};

inline constexpr int kMaxTerms = 40;  // of 256 columns each

// Rows = sum of the summands, written to out(r, column). kLower leaves out tiles above the
// diagonal.
template <bool kLower = false, bool kPairs = false, class Out>
HWY_INLINE void MultiplyRows(const RowSummand* summands, int count, Index rows,
                             const Panels& panels, const float* scale, bool add, Out&& out,
                             Ahead* ahead = nullptr) {
  const Split split(rows);
  if (ahead) ahead->Begin(panels.count * split.tiles);
  for (Index j = 0; j < panels.count; ++j) {
    const Index width = panels.width(j);
    for (Index t = 0; t < split.tiles; ++t) {
      const Index first = split.begin(t), height = split.height(t);
      if (kLower && j * kPanel >= first + height) continue;
      if (ahead) ahead->Step();
      Term terms[kMaxTerms];
      int used = 0;
      for (int s = 0; s < count; ++s) {
        const RowSummand& x = summands[s];
        const Index reach = kPairs ? (first + height + 1) / 2 : first + height;
        const Index k = x.triangle ? std::min(x.k, reach) : x.k;
        for (Index at = x.from, next; at < k; at = next) {
          next = std::min((at / kChunk + 1) * kChunk, k);
          terms[used++] = {
              x.a + at / kChunk * (kTokens * kRowStride) + first * kRowStride + at % kChunk,
              x.b + panels.offset(j, x.b_rows) + at * width, 0, width, next - at};
        }
      }
      TileOut to;
      for (Index r = 0; r < height; ++r) to.rows[r] = out(first + r, j * kPanel);
      to.scale = scale ? scale + first : nullptr;
      to.add = add;
      BestTileFor<false, kPairs>(height, width)(terms, used, to);
    }
  }
}

// A^T B over `tokens` rows of a row-major A of `rows` columns and a panel matrix B. kLower: A is
// lower triangular.
template <bool kLower = false, bool kPairs = false, class Out>
HWY_INLINE void MultiplyTransposed(const float* a, Index rows, Index tokens, const float* b,
                                   const Panels& panels, const float* scale, bool add, Out&& out,
                                   Ahead* ahead = nullptr) {
  constexpr bool kSummary = std::is_same_v<std::decay_t<Out>, SummaryPlace>;
  if (ahead) ahead->Begin(panels.count * Split(std::min(kChunk, rows)).tiles);
  for (Index j = 0; j < panels.count; ++j) {
    const Index width = panels.width(j);
    for (Index chunk = 0; chunk < rows; chunk += kChunk) {
      const Index left = std::min(kChunk, rows - chunk);
      bool paired = false;  // then tiles begin at even rows
      if constexpr (kSummary) paired = out.halved;
      const Split split = paired ? Split(HalfUp(left), kMaxRows / 2) : Split(left);
      for (Index t = 0; t < split.tiles; ++t) {
        const Index first = split.begin(t) << (paired ? 1 : 0);
        const Index height = paired ? std::min(2 * split.height(t), left - first) : split.height(t);
        if (ahead) ahead->Step();
        const Index skip = !kLower ? 0 : kPairs ? first / 2 : first;
        const Term term{a + chunk / kChunk * (kTokens * kRowStride) + skip * kRowStride + first,
                        b + panels.offset(j, tokens) + skip * width, kRowStride, width,
                        tokens - skip};
        TileOut to;
        to.paired = paired;
        if constexpr (kSummary) {
          if (paired) out.Fill((chunk + first) / 2, HalfUp(height), j * kPanel, to.rows);
          else out.Fill(chunk + first, height, j * kPanel, to.rows);
        } else {
          for (Index r = 0; r < height; ++r) to.rows[r] = out(chunk + first + r, j * kPanel);
        }
        to.scale = scale;
        to.add = add;
        BestTileFor<true, kPairs>(height, width)(&term, 1, to);
      }
    }
  }
}

// Packs a mixing matrix k-major, tile by tile of rows: weight(r, c).
template <class Weight>
void PackMixing(Index rows, Index columns, float* to, Weight&& weight) {
  const Split split(rows);
  for (Index t = 0; t < split.tiles; ++t) {
    const Index first = split.begin(t), height = split.height(t);
    float* tile = to + first * columns;
    for (Index c = 0; c < columns; ++c) {
      for (Index r = 0; r < height; ++r) tile[c * height + r] = weight(first + r, c);
    }
  }
}

// The same as pairs of neighbouring columns, of each tile's own range of them.
template <class Range, class Weight>
void PackMixingPairs(Index rows, Index columns, float* to, const Range& range,
                     const Weight& weight) {
  const Split split(rows);
  for (Index t = 0; t < split.tiles; ++t) {
    const Index first = split.begin(t), height = split.height(t);
    BFloat16* tile = reinterpret_cast<BFloat16*>(to + first * HalfUp(columns));
    const auto [begin, end] = range(first, height);
    for (Index c = begin; c < end; c += 2) {
      for (Index r = 0; r < height; ++r, tile += 2) {
        tile[0] = from_float<BFloat16>(weight(first + r, c));
        tile[1] = from_float<BFloat16>(c + 1 < end ? weight(first + r, c + 1) : 0.0f);
      }
    }
  }
}

// out(r, p) = sum over blocks c in [begin(tile), end(tile)) of packed(r, c) * stack[c], panels
// p0..p1. `upwards` takes the last rows first: where a row depends on none behind it, it may
// replace its block of the stack. kHalved: both operands are pairs.
template <bool kHalved = false, class Range, class Out>
HWY_INLINE void Mix(Index p0, Index p1, const float* packed, Index rows, Index columns,
                    const Stack& stack, bool upwards, const Range& range, const Out& out,
                    Ahead* ahead) {
  const Split split(rows);
  constexpr Index kParts = kHalved ? 2 : 1;  // of a panel
  if (ahead) ahead->Begin((p1 - p0) * kParts * split.tiles);
  for (Index part = p0 * kParts; part < p1 * kParts; ++part) {
    const Index p = part / kParts, column = part % kParts * kLanes;
    for (Index at = 0; at < split.tiles; ++at) {
      const Index t = upwards ? split.tiles - 1 - at : at;
      const Index first = split.begin(t), height = split.height(t);
      const auto [begin, end] = range(first, height);
      const float* weights = kHalved ? packed + first * HalfUp(columns)
                                     : packed + first * columns + begin * height;
      const Term term{weights, stack.panel(p, begin) + column, height, Stack::kStride,
                      std::max<Index>(end - begin, 0)};
      if (ahead) ahead->Step();
      TileOut to;
      for (Index r = 0; r < height; ++r) to.rows[r] = out(first + r, p) + column;
      TileFunction tile = TileFor<true>(height, kPanel);
#if MHLA_CPU_PAIRS
      if constexpr (kHalved) tile = MixTileFor(height);
#endif
      tile(&term, 1, to);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_PRODUCT_INL_H_
