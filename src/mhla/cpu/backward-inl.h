// Backward pass of one head: summaries again, then gradients of queries, summaries, keys and
// values.
//
// Summaries are kept transposed (V^T K), which is the operand that both d_q = G S~^T and d_k = V
// dS^T need; only d_v = K dS transposes one block's gradient.
#if defined(MHLA_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_BACKWARD_INL_H_
#undef MHLA_CPU_BACKWARD_INL_H_
#else
#define MHLA_CPU_BACKWARD_INL_H_
#endif

#include "mhla/cpu/gradient-inl.h"
#include "mhla/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// Of one summary stack: what stays in L2 while the tiles of d_mixing walk over it.
inline constexpr Index kDotBytes = 512 * 1024;
// Of each of both stacks: what one thread takes products of and mixes while it is in L2.
inline constexpr Index kMixBytes = 240 * 1024;
inline constexpr Index kDotTilesAtOnce = 2;  // rows of tiles per piece of work

// kPairs: where nothing divides, so that no gradients of numerator and denominator have to cancel.
// kSumPairs: of summaries, and of d_v, which has no part of the denominator's.
template <class T, bool kPairs, bool kSumPairs = kPairs>
class HeadBackward : HeadPass<T, kPairs, kSumPairs> {
  using Base = HeadPass<T, kPairs, kSumPairs>;
  using Base::f_, Base::g_, Base::head_, Base::p_, Base::s_, Base::slot_, Base::stride_;

 public:
  HeadBackward(const Problem& problem, const Head& head, const Slot& slot, const Scratch& scratch)
      : Base(problem, head, slot, scratch, true),
        late_(mixes_late(g_)),
        // Where a query's gradient needs what is known only after mixing, or the open block.
        deferred_(g_.causal || g_.shared || late_) {}

  void Run(Team& team) {
    late_ ? MixLate(team) : MixEarly(team);
    team.each(head_.mk, [&](Index b) HWY_ATTR { KeysAndValues(b); });
  }

 private:
  static constexpr bool kNarrow = sizeof(T) < sizeof(float);

  // Queries need S~, or what divides by it.
  void MixEarly(Team& team) {
    this->PrepareMixed(team);
    team.each(head_.mq + 1, [&](Index i) HWY_ATTR {
      if (i > 0) return Queries(i - 1);
      PackTransposedWeights();
    });
    const Index mixes = this->MixingPieces();
    team.each(DotPieces() + mixes, [&](Index at) HWY_ATTR {
      if (at < DotPieces()) return MixingGradient(at);
      const Index p0 = (at - DotPieces()) * kPanelsAtOnce;
      MixGradients(p0, std::min(f_.size / kPanel, p0 + kPanelsAtOnce));
    });
  }
  // S and dS~ first; then S~ takes the place of one and dS that of the other.
  void MixLate(Team& team) {
    this->workers_ = team.size();
    const Index summaries = this->Summarized();
    team.each(1 + summaries + head_.mq, [&](Index at) HWY_ATTR {
      if (at == 0) return this->PackWeights(), PackTransposedWeights();
      at <= summaries ? this->Summarize(at - 1) : Queries(at - 1 - summaries);
    });
    const Index panels = f_.size / kPanel, groups = (panels + kGroup - 1) / kGroup;
    const Index at_once = GroupsAtOnce(kMixBytes), tiles = Split(head_.mq, kDotTile).tiles;
    team.each(kStrands, [&](Index s) HWY_ATTR {
      float* dots = slot_.strands + s * head_.mq * head_.mk;
      std::fill(dots, dots + head_.mq * head_.mk, 0.0f);
      const Index begin = groups * s / kStrands, end = groups * (s + 1) / kStrands;
      for (Index g = begin; g < end; g += at_once) {
        const Index p0 = g * kGroup, p1 = std::min(panels, std::min(end, g + at_once) * kGroup);
        AddDots(p0, p1, 0, tiles, dots);
        // What this thread will take next.
        const Index ahead = std::clamp<Index>(end - g - at_once, 0, at_once) * head_.mq;
        Ahead first(nullptr, ahead), second = first;
        first.Add(this->Summaries(), p1), second.Add(Gradients(), p1);
        this->MixSummaries(p0, p1, &first);
        MixGradients(p0, p1, &second);
      }
    });
  }
  void PackTransposedWeights() {
    const auto weight = [&](Index b, Index q)
                            HWY_ATTR { return b < this->Closed(q) ? this->Weight(q, b) : 0.0f; };
    if (this->halved_) {  // which have nothing in f32 beside them
      PackMixingPairs(head_.mk, head_.mq, slot_.mixing_t, Readers(), weight);
    } else {
      PackMixing(head_.mk, head_.mq, slot_.mixing_t, weight);
    }
  }
  // Query blocks that see the first of some key blocks.
  auto Readers() const {
    return [this](Index first, Index)
               HWY_ATTR { return std::pair<Index, Index>(FirstReader(first), head_.mq); };
  }
  void MixGradients(Index p0, Index p1, Ahead* ahead = nullptr) {
    const Stack stack = Gradients();
    this->EitherMix(
        p0, p1, slot_.mixing_t, slot_.mixing_t, head_.mk, head_.mq, stack, false, Readers(),
        [&](Index b, Index p) HWY_ATTR {
          return late_ ? stack.panel(p, b) : slot_.d_summaries + b * stride_ + p * kPanel;
        },
        ahead);
  }

  Stack Gradients() const { return Stack(slot_.d_mixed, head_.mq); }
  // The first query block that sees the closed key block b.
  Index FirstReader(Index b) const {
    if (p_.mask == Mask::causal) return std::min(b + 1, head_.mq);
    return p_.mask == Mask::block_causal ? b : 0;
  }
  Source<T> OutputGradients(Index count) const { return {head_.d_o, s_.at, count, p_.dv, {}}; }
  float* Result(Index r, Index c) const { return s_.result + r * g_.dk_padded + c; }
  bool den_joins() const { return g_.normalized && !p_.separate_denominator; }

  // dS~_i and dz~_i, and d_q where nothing later contributes to it.
  void Queries(Index i) {
    const Block& block = head_.query_blocks[i];
    const Stack to = Gradients();
    this->ClearExtra(to, i);
    float scale[kMaxRows];
    for (Index begin = 0; begin < block.tokens(); begin += g_.tokens) {
      const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
      ListTokens(block, begin, count, s_.at);
      float* factor = s_.factor;
      float* d_den = s_.factor + g_.tokens;
      const bool packed = this->Denominators(slot_.mixed + i * stride_, i, begin, count, true,
                                             factor);
      for (Index t = 0; t < count; ++t) factor[t] = this->Factor(factor[t]);
      const Source<T> outputs{head_.o, s_.at, count, p_.dv, {}};
      // Pairs are scaled behind the product, so that they are not rounded.
      if constexpr (kPairs) PackRowPairs(OutputGradients(count), false, s_.a2);
      else
        PackScaled(OutputGradients(count), factor, false, s_.a2,
                   g_.normalized && !kNarrow ? &outputs : nullptr, d_den);
      if (g_.normalized) {
        if (kNarrow) OutputDots(i, begin, count, d_den);
        SumGradient(i, begin, count, packed, d_den, to);
      }
      if constexpr (kPairs) PackRowPairs(this->QueryRows(count), true, s_.b);
      else if (!packed) PackPanels(this->QueryRows(count), s_.b);
      Ahead ahead = this->Next(head_.query_blocks, head_.mq, i, begin + count);
      ahead.Add(head_.q, p_.dk, sizeof(T)).Add(head_.d_o, p_.dv, sizeof(T));
      if (g_.normalized && !kNarrow) ahead.Add(head_.o, p_.dv, sizeof(T));
      const SummaryPlace place{to, i, f_.rows, Panels(p_.dk), this->halved_};
      std::fill(scale, scale + kMaxRows, static_cast<float>(p_.scale));
      MultiplyTransposed<false, kPairs>(s_.a2, p_.dv, this->Steps(count), s_.b, Panels(p_.dk),
                                        kPairs ? scale : nullptr, begin > 0, place, &ahead);
      if (late_) {
        continue;
      } else if (deferred_) {
        for (Index t = 0; t < count; ++t) {
          slot_.inverse[s_.at[t]] = factor[t];
          if (g_.normalized) slot_.d_denominator[s_.at[t]] = d_den[t];
        }
      } else {
        QueryGradient(i, count, d_den);
      }
    }
  }

  // -<d_o, o> * scale / denominator in f32, o being too coarse in 16 bits: where gradients of
  // numerator and denominator cancel, its rounding would remain. <d_o, o> = <phi(q), d_q>, left in
  // s_.result.
  void OutputDots(Index i, Index begin, Index count, float* d_den) {
    const RowSummand product{s_.a2, p_.dv, slot_.mixed + i * stride_, p_.dv};
    MultiplyRows(&product, 1, count, Panels(p_.dk), nullptr, false,
                 [&](Index r, Index c) HWY_ATTR { return Result(r, c); });
    if (g_.causal) OpenQueries(i, begin, count, begin + count == head_.query_blocks[i].tokens());
    MappedDots(this->QueryRows(count), s_.result, g_.dk_padded, d_den);
    for (Index t = 0; t < count; ++t) d_den[t] *= -s_.factor[t];
  }

  // Gradient of z~_i (exact) or of the mixed q . z (shared_position).
  void SumGradient(Index i, Index begin, Index count, bool packed, const float* d_den,
                   const Stack& to) {
    if (g_.shared) {
      for (Index t = 0; t < count; ++t) {
        *to.at(f_.extra + this->Coordinate(head_.query_blocks[i], begin + t), i) = d_den[t];
      }
      return;
    }
    if (!packed) PackPanels(this->DenQueries(count), s_.b);
    const Panels panels(p_.dk);
    for (Index j = 0; j < panels.count; ++j) {
      const Term term{d_den, s_.b + panels.offset(j, count), 1, panels.width(j), count};
      TileOut out;
      out.rows[0] = to.at(f_.extra + j * kPanel, i);
      out.add = begin > 0;
      TileFor<true>(1, panels.width(j))(&term, 1, out);
    }
  }

  // d_q = G S~^T + d_den z~.
  void QueryGradient(Index i, Index count, const float* d_den) {
    const float* mixed = slot_.mixed + i * stride_;
    if (head_.d_q.data) {
      Ahead ahead(s_.at, count);
      ahead.Add(head_.d_q, p_.dk, sizeof(T));
      if (kPairs) PackScaledPairs(OutputGradients(count), s_.factor, s_.a);
      if (!kNarrow || !g_.normalized) {  // otherwise OutputDots has left it
        TimesMatrix(kPairs ? s_.a : s_.a2, p_.dv, Operand(mixed, p_.dv, p_.dk), count, &ahead);
      }
      StoreGradient<kSumPairs>({.rows = s_.result,
                                .stride = g_.dk_padded,
                                .weight = d_den,
                                .vector = den_joins() ? mixed + f_.extra : nullptr},
                               this->QueryRows(count), head_.d_q);
    }
    if (head_.d_q_den.data) {
      StoreGradient<kSumPairs>({.weight = d_den, .vector = mixed + f_.extra},
                               this->DenQueries(count), head_.d_q_den);
    }
  }

  // dm_ib = <dS~_i, S_b> for a few rows of tiles, the last rows of a mask, which see most, first.
  Index DotPieces() const {
    return (Split(head_.mq, kDotTile).tiles + kDotTilesAtOnce - 1) / kDotTilesAtOnce;
  }
  void MixingGradient(Index piece) {
    const Split rows(head_.mq, kDotTile);
    const Index first_tile = (DotPieces() - 1 - piece) * kDotTilesAtOnce;
    const Index last_tile = std::min(rows.tiles, first_tile + kDotTilesAtOnce);
    const Index panels = f_.size / kPanel, at_once = GroupsAtOnce(kDotBytes) * kGroup;
    float* to = slot_.d_mixing;
    std::fill(to + rows.begin(first_tile) * head_.mk, to + rows.begin(last_tile) * head_.mk, 0.0f);
    for (Index p = 0; p < panels; p += at_once) {
      AddDots(p, std::min(panels, p + at_once), first_tile, last_tile, to);
    }
    for (Index i = rows.begin(first_tile); i < rows.begin(last_tile); ++i) {
      std::fill(to + i * head_.mk + std::min(this->Closed(i), head_.mk), to + (i + 1) * head_.mk,
                0.0f);
    }
  }
  // Groups of one stack that take so many bytes, at least one.
  Index GroupsAtOnce(Index bytes) const {
    const Index group = std::max(head_.mk, head_.mq) * Stack::kStride * Index{sizeof(float)};
    return std::max<Index>(1, bytes / std::max<Index>(1, group));
  }
  // Panels p0..p1, p0 being the first of a group, and some rows of tiles. What lies behind a mask
  // is not meant to be read.
  void AddDots(Index p0, Index p1, Index first_tile, Index last_tile, float* to) {
    const Split rows(head_.mq, kDotTile), columns(head_.mk, kDotTile);
    const Stack a = Gradients(), b = this->Summaries();
    for (Index t = first_tile; t < last_tile; ++t) {
      const Index i = rows.begin(t), height = rows.height(t);
      for (Index u = 0; u < columns.tiles; ++u) {
        const Index c = columns.begin(u);
        if (c >= this->Closed(i + height - 1)) break;
        const Index width = columns.height(u);
        DotFunction dots = DotFor<false>(height, width);
        if constexpr (kPairs) {
          if (this->halved_) dots = DotFor<true>(height, width);
        }
        dots(a.panel(p0, i), a.group_stride(), b.panel(p0, c), b.group_stride(), p1 - p0,
             to + i * head_.mk + c, head_.mk);
      }
    }
  }
  // Late mixing: the gradient of row i from the parts that strands have left.
  void SumStrands(Index i) {
    const Index size = head_.mq * head_.mk, closed = std::min(this->Closed(i), head_.mk);
    for (Index c = 0; c < head_.mk; ++c) {
      float sum = 0;
      for (Index s = 0; s < kStrands && c < closed; ++s) {
        sum += slot_.strands[s * size + i * head_.mk + c];
      }
      slot_.d_mixing[i * head_.mk + c] = sum;
    }
  }

  void KeysAndValues(Index b) {
    if (late_) SumStrands(b);
    if (late_ && g_.causal && head_.key_blocks[b].tokens() <= g_.tokens) return OpenBlock(b);
    float* d_summary = late_ ? s_.flat : slot_.d_summaries + b * stride_;
    float* d_sum = d_summary + f_.extra;
    if (g_.shared) {
      d_sum = s_.row + 2 * g_.dk_padded;
      Clear(d_sum, g_.dk_padded);
    }
    if (deferred_) DeferredQueries(b, d_sum);
    if (late_) Gather(Gradients(), b, 0, f_.size / kPanel, d_summary);
    const Block& block = head_.key_blocks[b];
    if (g_.causal) return CausalKeys(b, d_summary, d_sum);
    if (head_.d_v.data) TransposePanels(d_summary, p_.dv, p_.dk, s_.matrix);
    for (Index begin = 0; begin < block.tokens(); begin += g_.tokens) {
      const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
      ListTokens(block, begin, count, s_.at);
      if (head_.d_k.data) {
        PackOperand(this->Values(count), s_.a);
        Ahead ahead(s_.at, count);
        ahead.Add(head_.d_k, p_.dk, sizeof(T)).Add(head_.d_v, p_.dv, sizeof(T));
        TimesMatrix(s_.a, p_.dv, Operand(d_summary, p_.dv, p_.dk), count, &ahead);
        StoreGradient<kSumPairs>(
            {.rows = s_.result, .stride = g_.dk_padded, .vector = den_joins() ? d_sum : nullptr},
            this->Keys(count), head_.d_k);
      }
      if (head_.d_k_den.data) {
        StoreGradient<kSumPairs>({.vector = d_sum}, this->DenKeys(count), head_.d_k_den);
      }
      if (head_.d_v.data) {
        PackOperand<kSumPairs>(this->Keys(count), s_.a2);
        Ahead ahead = this->Next(head_.key_blocks, head_.mk, b, begin + count);
        ahead.Add(head_.k, p_.dk, sizeof(T)).Add(head_.v, p_.dv, sizeof(T));
        ValueGradient(count, 0, nullptr, &ahead);
      }
    }
  }

  // Token rows, and a summary matrix in panels, as operands of a product.
  template <bool kOfPairs = kPairs>
  void PackOperand(const Source<T>& from, float* to) {
    if constexpr (kOfPairs) PackColumnPairs(from, to);
    else PackRows(from, to);
  }
  template <bool kOfPairs = kPairs>
  const float* Operand(const float* matrix, Index rows, Index width) {
    if (kOfPairs) PairRows(matrix, rows, width, s_.paired);
    return kOfPairs ? s_.paired : matrix;
  }
  const float* Operand(const Stack& stack, Index block) {
    float* to = kPairs ? s_.paired : s_.flat;
    if (kPairs && !this->halved_) PairRows(stack, block, p_.dv, p_.dk, to);
    else Gather(stack, block, 0, f_.size / kPanel, to);
    return to;
  }
  // s_.result = token rows times a matrix [k, dk].
  void TimesMatrix(const float* rows, Index k, const float* matrix, Index count,
                   Ahead* ahead = nullptr) {
    const RowSummand product{rows, this->Steps(k), matrix, this->Steps(k)};
    const auto to = [&](Index r, Index c) HWY_ATTR { return Result(r, c); };
    MultiplyRows<false, kPairs>(&product, 1, count, Panels(p_.dk), nullptr, false, to, ahead);
  }

  // d_v = K dS, plus weight * scores^T G of an open block (G as panels in s_.b3).
  void ValueGradient(Index count, float weight, const float* scores, Ahead* ahead = nullptr) {
    const Panels panels(p_.dv);
    const Index features = kSumPairs ? HalfUp(p_.dk) : p_.dk;
    const RowSummand product{s_.a2, features, Operand<kSumPairs>(s_.matrix, p_.dk, p_.dv),
                             features};
    const auto write = [&](auto&& out) HWY_ATTR {
      MultiplyRows<false, kSumPairs>(&product, 1, count, panels, nullptr, false, out, ahead);
      if (!scores) return;
      float factor[kMaxRows];
      std::fill(factor, factor + kMaxRows, weight);
      MultiplyTransposed<true>(scores, count, count, s_.b3, panels, factor, true, out);
    };
    WriteValueGradient(count, write);
  }
  // What write(out) puts to out(row, column) goes to d_v.
  template <class Write>
  void WriteValueGradient(Index count, Write&& write) {
    if (std::is_same_v<T, float> && p_.dv % kLanes == 0) {
      float* d_v = reinterpret_cast<float*>(head_.d_v.data);
      return write([&](Index r, Index c)
                       HWY_ATTR { return d_v + s_.at[r] * head_.d_v.stride + c; });
    }
    write([&](Index r, Index c) HWY_ATTR { return s_.result + r * g_.dv_padded + c; });
    Unpack<T, kSumPairs>(s_.result, g_.dv_padded, head_.d_v, s_.at, count, p_.dv);
  }

  void RecallFactors(Index count, float* factor, float* d_den) {
    if (late_) {
      std::fill(factor, factor + count, this->Factor(0));
      return std::fill(d_den, d_den + count, 0.0f);
    }
    for (Index t = 0; t < count; ++t) {
      factor[t] = slot_.inverse[s_.at[t]];
      d_den[t] = g_.normalized ? slot_.d_denominator[s_.at[t]] : 0.0f;
    }
  }

  void OpenBlock(Index b);
  void DeferredQueries(Index i, float* d_sum);
  void OpenQueries(Index i, Index begin, Index count, bool last);
  void DenominatorRows(Index i, Index begin, Index count, const float* d_den, float* rows,
                       float* d_sum);
  void CausalKeys(Index b, float* d_summary, const float* d_sum);
  void OpenKeyRows(Index count, float weight, const float* d_den, const float* d_sum, float* rows);

  const bool late_, deferred_;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_BACKWARD_INL_H_
