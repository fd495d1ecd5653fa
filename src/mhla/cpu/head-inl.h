// What forward and backward of one head share: summaries, their mixture, denominators.
#if defined(MHLA_CPU_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_HEAD_INL_H_
#undef MHLA_CPU_HEAD_INL_H_
#else
#define MHLA_CPU_HEAD_INL_H_
#endif

#include "mhla/cpu/pack-inl.h"
#include "mhla/cpu/pairs-inl.h"
#include "mhla/cpu/product-inl.h"
#include "mhla/cpu/team.h"
#include "mhla/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// Groups of the flattened summaries, per piece of mixing work.
inline constexpr Index kPanelsAtOnce = 2 * kGroup;

HWY_INLINE float Dot(const float* a, const float* b, Index padded) {
  const DF d;
  VF sum = hn::Zero(d);
  for (Index x = 0; x < padded; x += kLanes) sum = hn::MulAdd(Load(a + x), Load(b + x), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}
// y += factor * x
HWY_INLINE void AddScaled(float factor, const float* x, float* y, Index padded) {
  const VF f = hn::Set(DF(), factor);
  for (Index i = 0; i < padded; i += kLanes) Store(hn::MulAdd(f, Load(x + i), Load(y + i)), y + i);
}
// The same with row t of a row-major operand of `width` columns.
HWY_INLINE float RowDot(const float* rows, Index t, const float* with, Index width) {
  float sum = 0;
  for (Index x = 0; x < width; x += kChunk) {
    const float* row = rows + x / kChunk * (kTokens * kRowStride) + t * kRowStride;
    sum += Dot(row, with + x, round_up(std::min(kChunk, width - x), kLanes));
  }
  return sum;
}
HWY_INLINE void AddScaledRow(float factor, const float* rows, Index t, float* y, Index width) {
  for (Index x = 0; x < width; x += kChunk) {
    const float* row = rows + x / kChunk * (kTokens * kRowStride) + t * kRowStride;
    AddScaled(factor, row, y + x, round_up(std::min(kChunk, width - x), kLanes));
  }
}

HWY_INLINE void Clear(float* x, Index padded) { std::fill(x, x + padded, 0.0f); }
HWY_INLINE void Copy(const float* x, float* y, Index count) { std::copy(x, x + count, y); }

// `transposed`: summaries are V^T K instead of K^T V, which is what gradients need. kPairs:
// operands of the products over tokens and features are pairs of bf16, and of mixing where
// summaries are kept as pairs. kSumPairs: those of summaries are.
template <class T, bool kPairs, bool kSumPairs = kPairs>
class HeadPass {
 public:
  HeadPass(const Problem& problem, const Head& head, const Slot& slot, const Scratch& scratch,
           bool transposed)
      : p_(problem),
        head_(head),
        slot_(slot),
        s_(scratch),
        g_(problem, kLanes),
        halved_(kPairs && halves_summaries(g_, transposed)),
        f_(problem, transposed, kLanes, halved_),
        stride_(mixed_stride(f_.size, kLanes)),
        map_(problem.feature_map),
        transposed_(transposed) {}

 protected:
  // S_b and S~_i of the whole head.
  void PrepareMixed(Team& team) {
    workers_ = team.size();
    team.each(Summarized() + 1, [&](Index b) HWY_ATTR {
      if (b > 0) return Summarize(b - 1);
      PackWeights();
    });
    team.each(MixingPieces(), [&](Index at) HWY_ATTR {
      MixSummaries(at * kPanelsAtOnce, std::min(f_.size / kPanel, (at + 1) * kPanelsAtOnce));
    });
  }

  Stack Summaries() const { return Stack(slot_.summaries, head_.mk); }
  // Key blocks whose summary is read: inside a causal mask the last one has no reader.
  Index Summarized() const {
    return g_.causal && !g_.shared ? std::max<Index>(head_.mk - 1, 0) : head_.mk;
  }
  void PackWeights() {
    const auto weight = [&](Index i, Index c)
                            HWY_ATTR { return c < Closed(i) ? Weight(i, c) : 0.0f; };
    if (!halved_) return PackMixing(head_.mq, head_.mk, slot_.mixing, weight);
    PackMixingPairs(head_.mq, head_.mk, slot_.mixing_pairs, SeenBy(), weight);
    if (!g_.shared) return;
    // The same weights for numerators and denominators.
    PackMixing(head_.mq, head_.mk, slot_.mixing, [&](Index i, Index c) HWY_ATTR {
      return to_float(from_float<BFloat16>(weight(i, c)));
    });
  }
  // Blocks that a tile of query blocks sees.
  auto SeenBy() const {
    return [this](Index first, Index height)
               HWY_ATTR { return std::pair<Index, Index>(0, Closed(first + height - 1)); };
  }
  Index MixingPieces() const { return (f_.size / kPanel + kPanelsAtOnce - 1) / kPanelsAtOnce; }
  void MixSummaries(Index p0, Index p1, Ahead* ahead = nullptr) {
    const Stack stack = Summaries();
    EitherMix(
        p0, p1, slot_.mixing_pairs, slot_.mixing, head_.mq, head_.mk, stack, true, SeenBy(),
        [&](Index i, Index p) HWY_ATTR {
          return slot_.mixed ? slot_.mixed + i * stride_ + p * kPanel : stack.panel(p, i);
        },
        ahead);
  }
  // Panels of pairs, and the q . z of shared_position in f32. A key sum is rounded to bf16, which
  // makes it one of pairs that begin with zero: it is mixed as the columns of S are.
  template <class... Rest>
  void EitherMix(Index p0, Index p1, const float* pairs, const float* packed, const Rest&... rest) {
    if constexpr (kPairs) {
      const Index end = g_.shared ? std::clamp(f_.extra / kPanel, p0, p1) : p1;
      if (halved_) Mix<true>(p0, end, pairs, rest...), p0 = end;
    }
    Mix(p0, p1, packed, rest...);
  }
  // All of S~_i and what else is mixed, contiguous; s_.flat where it has to be gathered. Pairs stay
  // pairs.
  float* Mixed(Index i) const {
    if (slot_.mixed) return slot_.mixed + i * stride_;
    Gather(Summaries(), i, 0, f_.size / kPanel, s_.flat);
    return s_.flat;
  }

  float Weight(Index i, Index b) const { return head_.mixing[i * head_.mixing_stride + b]; }
  // Key blocks whose whole summary query block i sees.
  Index Closed(Index i) const {
    if (p_.mask == Mask::causal) return i;
    return p_.mask == Mask::block_causal ? i + 1 : head_.mk;
  }
  Source<T> QueryRows(Index count) const { return {head_.q, s_.at, count, p_.dk, map_}; }
  Source<T> Keys(Index count) const { return {head_.k, s_.at, count, p_.dk, map_}; }
  Source<T> Values(Index count) const { return {head_.v, s_.at, count, p_.dv, {}}; }
  Source<T> DenQueries(Index count) const { return {head_.q_den, s_.at, count, p_.dk, map_}; }
  Source<T> DenKeys(Index count) const { return {head_.k_den, s_.at, count, p_.dk, map_}; }

  float Factor(float sum) const { return factor_of(p_, sum); }

  // The tokens this thread will probably take after position `end` of block `at`.
  Ahead Next(const Block* blocks, Index block_count, Index at, Index end) const {
    if (end == blocks[at].tokens()) end = 0, at += workers_;
    const Index left = at < block_count ? blocks[at].tokens() - end : 0;
    const Index count = std::min<Index>(g_.tokens, left);
    if (count > 0) ListTokens(blocks[at], end, count, s_.at + g_.tokens);
    return Ahead(s_.at + g_.tokens, count);
  }

  void Summarize(Index b) {
    const Stack stack = Summaries();
    const Block& block = head_.key_blocks[b];
    const Index tokens = block.tokens();
    float* sum = s_.row;
    Clear(sum, g_.dk_padded);
    const SummaryPlace to{stack, b, f_.rows, Panels(f_.width), halved_};
    const Index rows = transposed_ ? p_.dv : p_.dk;
    const bool own_sums = g_.normalized && p_.separate_denominator;
    for (Index begin = 0; begin < tokens; begin += g_.tokens) {
      const Index count = std::min<Index>(g_.tokens, tokens - begin);
      ListTokens(block, begin, count, s_.at);
      if (own_sums) PackRows(DenKeys(count), s_.a, {.sums = sum});
      PackSummands(count, g_.normalized && !own_sums ? sum : nullptr);
      Ahead ahead = Next(head_.key_blocks, head_.mk, b, begin + count);
      ahead.Add(head_.k, p_.dk, sizeof(T)).Add(head_.v, p_.dv, sizeof(T));
      MultiplyTransposed<false, kSumPairs>(s_.a, rows, kSumPairs ? HalfUp(count) : count, s_.b,
                                           Panels(f_.width), nullptr, begin > 0, to, &ahead);
    }
    ClearExtra(stack, b);
    if (g_.shared) return OwnDenominators(stack, b, sum);
    for (Index x = 0; x < f_.extra_length; x += kLanes) {
      // As S, whose columns of a constant v it has to equal.
      Store(halved_ ? Rounded(Load(sum + x)) : Load(sum + x), stack.at(f_.extra + x, b));
    }
  }

  // All of a flattened block behind its summary matrix.
  void ClearExtra(const Stack& stack, Index b) {
    const DF d;
    for (Index f = f_.rows * Panels(f_.width).columns; f < f_.size; f += kLanes) {
      Store(hn::Zero(d), stack.at(f, b));
    }
  }

  // Steps of a product over `count` tokens or features.
  static Index Steps(Index count) { return kPairs ? HalfUp(count) : count; }

  // Keys and values of a chunk as operands of its summary.
  void PackSummands(Index count, float* sums) {
    const Source<T> rows = transposed_ ? Values(count) : Keys(count);
    const Source<T> panels = transposed_ ? Keys(count) : Values(count);
    if constexpr (kSumPairs) {
      PackRowPairs(rows, false, s_.a, transposed_ ? nullptr : sums);
      PackRowPairs(panels, true, s_.b, transposed_ ? sums : nullptr);
    } else {
      PackRows(rows, s_.a, {.sums = transposed_ ? nullptr : sums});
      PackPanels(panels, s_.b, {.sums = transposed_ ? sums : nullptr});
    }
  }

  // shared_position: q . z of each query with its own block, by coordinate.
  void OwnDenominators(const Stack& stack, Index b, const float* sum) {
    if (slot_.sums) Copy(sum, slot_.sums + b * g_.dk_padded, g_.dk_padded);
    const Block& block = head_.query_blocks[b];
    for (Index begin = 0; begin < block.tokens(); begin += g_.tokens) {
      const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
      ListTokens(block, begin, count, s_.at);
      PackRows(DenQueries(count), s_.a, {.with = sum, .dots = s_.factor});
      for (Index t = 0; t < count; ++t) {
        *stack.at(f_.extra + Coordinate(block, begin + t), b) = s_.factor[t];
      }
    }
  }

  Index Coordinate(const Block& block, Index position) const {
    return g_.coordinate(block, position);
  }

  // Unscaled denominators of the tokens listed in s_.at, from Mixed(i). True when it leaves phi(q)
  // behind, in s_.a or as panels in s_.b.
  bool Denominators(const float* mixed, Index i, Index begin, Index count, bool as_panels,
                    float* to) {
    if (!g_.normalized) return false;
    mixed += f_.extra;
    if (g_.shared) {
      for (Index t = 0; t < count; ++t) {
        to[t] = mixed[Coordinate(head_.query_blocks[i], begin + t)];
      }
    }
    if (g_.causal) {
      OpenDenominators(Weight(i, i), begin, count, mixed, to);
    } else if (!g_.shared) {
      if constexpr (kPairs) {
        float* rounded = s_.row;
        for (Index x = 0; x < g_.dk_padded; x += kLanes) {
          Store(Rounded(Load(mixed + x)), rounded + x);
        }
        PackColumnPairs(DenQueries(count), s_.a, {.with = rounded, .dots = to});
      } else {
        Pack(DenQueries(count), as_panels, as_panels ? s_.b : s_.a, {.with = mixed, .dots = to});
      }
      return !p_.separate_denominator;
    }
    return false;
  }

  // Causal: q . (z~ + weight * keys so far); shared_position adds only the keys of the open block.
  void OpenDenominators(float weight, Index begin, Index count, const float* mixed, float* to) {
    float* sum = s_.row + g_.dk_padded;  // lives as long as the block
    if (begin == 0) g_.shared ? Clear(sum, g_.dk_padded) : Copy(mixed, sum, g_.dk_padded);
    PackRows(DenQueries(count), s_.a);
    PackRows(DenKeys(count), s_.a2);
    for (Index t = 0; t < count; ++t) {
      AddScaledRow(weight, s_.a2, t, sum, p_.dk);
      const float open = RowDot(s_.a, t, sum, p_.dk);
      to[t] = g_.shared ? to[t] + open : open;
    }
  }

  // Keys (s_.a2, transposed in s_.b2) and values (s_.b) of a chunk of an open block.
  void PackOpenBlock(Index count) {
    if constexpr (kPairs) {
      PackColumnPairs(Keys(count), s_.a2);
      TransposeRows(s_.a2, count, Steps(p_.dk), s_.b2);
      PackRowPairs(Values(count), true, s_.b);
    } else {
      PackRows(Keys(count), s_.a2);
      TransposeRows(s_.a2, count, p_.dk, s_.b2);
      PackPanels(Values(count), s_.b);
    }
  }

  // weight * q k^T below and on the diagonal, as an operand; above it zero as far as a tile
  // reaches.
  void Scores(float weight, Index count, const float* queries, float* to) {
    LowerProduct<kPairs>(queries, Steps(p_.dk), s_.b2, weight, count, to);
    if constexpr (kPairs) PairLowerColumns(to, count, 1);
  }
  template <bool kOfPairs>
  void LowerProduct(const float* a, Index k, const float* b, float weight, Index count, float* to) {
    const RowSummand product{a, k, b, k};
    float* factor = s_.factor + 3 * g_.tokens;
    std::fill(factor, factor + count, weight);
    MultiplyRows<true, kOfPairs>(&product, 1, count, Panels(count), factor, false,
                                 [&](Index r, Index c)
                                     HWY_ATTR { return to + r * kRowStride + c; });
    for (Index r = 0; r < count; ++r) {
      float* row = to + r * kRowStride;
      std::fill(row + r + 1, row + r + 1 + kWidestLanes, 0.0f);  // the stride has room for it
    }
  }

  // summary += weight * a^T b, for a chunk of a block that is longer than one.
  template <bool kOfPairs>
  void AddChunk(float weight, const float* a, const float* b, Index count, float* summary) {
    float factor[kMaxRows];
    std::fill(factor, factor + kMaxRows, weight);
    const Panels panels(f_.width);
    const auto to = [&](Index r, Index c)
                        HWY_ATTR { return summary + c * f_.rows + r * panels.width(c / kPanel); };
    const Index steps = kOfPairs ? HalfUp(count) : count;
    MultiplyTransposed<false, kOfPairs>(a, f_.rows, steps, b, panels, factor, true, to);
  }

  const Problem& p_;
  const Head& head_;
  const Slot& slot_;
  const Scratch& s_;
  const Geometry g_;
  const bool halved_;  // summaries are pairs
  const Flat f_;
  const Index stride_;  // between query blocks of slot_.mixed
  const Map map_;
  const bool transposed_;
  Index workers_ = 1;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_HEAD_INL_H_
