// Dense form, forward: scores of a few query rows with all keys they see, times v.
#if defined(MHLA_CPU_DENSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_DENSE_INL_H_
#undef MHLA_CPU_DENSE_INL_H_
#else
#define MHLA_CPU_DENSE_INL_H_
#endif

#include "mhla/cpu/dense.h"
#include "mhla/cpu/head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// The first `count` lanes, which may be none or more than there are.
HWY_INLINE VF KeepFirst(Index count, VF x) {
  const Index lanes = std::clamp<Index>(count, 0, kLanes);
  return hn::IfThenElseZero(hn::FirstN(DF(), static_cast<std::size_t>(lanes)), x);
}

HWY_INLINE VF DropFirst(Index count, VF x) {
  const Index lanes = std::clamp<Index>(count, 0, kLanes);
  return hn::IfThenZeroElse(hn::FirstN(DF(), static_cast<std::size_t>(lanes)), x);
}

// What forward and backward share. kPairs: operands of both products are pairs of bf16.
template <class T, bool kPairs>
class DenseHead {
 public:
  DenseHead(const Problem& problem, const Head& head, const DenseRoom& room)
      : p_(problem),
        head_(head),
        room_(room),
        g_(problem, kLanes),
        map_(problem.feature_map),
        box_(round_up(g_.box[0] * g_.box[1] * g_.box[2], kLanes)),
        rows_at_once_(dense_rows(g_.masked)) {
    nq_ = List(head.query_blocks, head.mq, room.query_at, room.query_begin);
    nk_ = List(head.key_blocks, head.mk, room.key_at, room.key_begin);
    for (Index i = 0; i < head.mq; ++i) {
      std::fill(room.query_block + room.query_begin[i], room.query_block + room.query_begin[i + 1],
                i);
    }
  }

 protected:
  static Index List(const Block* blocks, Index count, Index* at, Index* begin) {
    begin[0] = 0;
    for (Index b = 0; b < count; ++b) {
      ListTokens(blocks[b], 0, blocks[b].tokens(), at + begin[b]);
      begin[b + 1] = begin[b] + blocks[b].tokens();
    }
    return begin[count];
  }

  static Index Steps(Index count) { return kPairs ? HalfUp(count) : count; }
  Source<T> Queries(Index s, Index count) const {
    return {head_.q, room_.query_at + s, count, p_.dk, map_};
  }
  Source<T> Keys(Index t, Index count) const {
    return {head_.k, room_.key_at + t, count, p_.dk, map_};
  }
  Source<T> Values(Index t, Index count) const {
    return {head_.v, room_.key_at + t, count, p_.dv, {}};
  }
  float Weight(Index i, Index b) const { return head_.mixing[i * head_.mixing_stride + b]; }
  // Key blocks of which query block i sees all or, behind a causal mask, a part.
  Index SeenBlocks(Index i) const { return g_.masked ? i + 1 : head_.mk; }
  // Keys that query s sees.
  Index Visible(Index s) const {
    return g_.causal ? s + 1 : room_.key_begin[SeenBlocks(room_.query_block[s])];
  }
  // Columns of a tile whose last query is s: whole panels of the packed keys.
  Index Columns(Index s) const { return std::min(nk_, round_up(Visible(s), kPanel)); }
  static float* At(float* rows, Index r, Index c) {
    return rows + c / kChunk * (kTokens * kRowStride) + r * kRowStride + c % kChunk;
  }

  // `width` features of all keys as panels [width, Nk].
  template <class From>
  void PackTransposed(Index width, float* to, From&& from) {
    for (Index t = 0; t < nk_; t += kTokens) {
      const Index count = std::min(kTokens, nk_ - t);
      if constexpr (kPairs) PackColumnPairs(from(t, count), room_.rows);
      else PackRows(from(t, count), room_.rows);
      TransposeRows(room_.rows, count, Steps(width), to + t * Steps(width));
    }
  }

  void Scores(Index count, Index columns) { AddScores(0, Steps(p_.dk), count, columns); }
  // Of steps `from` to `to` of a key's columns, added to those before.
  void AddScores(Index from, Index to, Index count, Index columns) {
    const RowSummand product{room_.q, to, room_.keys_t, Steps(p_.dk), false, from};
    MultiplyRows<false, kPairs>(&product, 1, count, Panels(columns), nullptr, from > 0,
                                [&](Index r, Index c) HWY_ATTR { return At(room_.scores, r, c); });
  }

  // Mixing weights of query block i by key; zero where it sees nothing, since a weight that is not
  // read may hold anything.
  void Expand(Index i) {
    if (i == expanded_) return;
    expanded_ = i;
    const Index seen = SeenBlocks(i);
    for (Index b = 0; b < seen; ++b) {
      const float weight = Weight(i, b);
      for (Index t = room_.key_begin[b]; t < room_.key_begin[b + 1]; ++t) room_.weights[t] = weight;
    }
    std::fill(room_.weights + room_.key_begin[seen], room_.weights + round_up(nk_, kLanes), 0.0f);
  }

  // shared_position: z_b, and q . z of each query with its own block, by coordinate.
  void OwnDenominators() {
    Clear(room_.sums, head_.mk * g_.dk_padded);
    Clear(room_.own, head_.mk * box_);
    for (Index b = 0; b < head_.mk; ++b) {
      float* sum = room_.sums + b * g_.dk_padded;
      EachChunk(b, [&](Index t, Index count)
                       HWY_ATTR { PackRows(Keys(t, count), room_.rows, {.sums = sum}); });
      EachChunk(b, [&](Index t, Index count) HWY_ATTR {
        float dots[kTokens];
        PackRows(Queries(t, count), room_.rows, {.with = sum, .dots = dots});
        for (Index r = 0; r < count; ++r) *Own(room_.own, b, t + r) = dots[r];
      });
    }
  }
  // Tokens of block b, the layouts of queries and keys being one.
  template <class F>
  void EachChunk(Index b, F&& f) {
    for (Index t = room_.key_begin[b]; t < room_.key_begin[b + 1]; t += kTokens) {
      f(t, std::min(kTokens, room_.key_begin[b + 1] - t));
    }
  }
  float* Own(float* table, Index i, Index s) const {
    return table + i * box_ + g_.coordinate(head_.query_blocks[i], s - room_.query_begin[i]);
  }
  // Blocks whose whole q . z joins the denominators of block i.
  Index ClosedBlocks(Index i) const { return g_.causal ? i : SeenBlocks(i); }
  float SharedDenominator(Index s) const {
    const Index i = room_.query_block[s];
    const float* own = Own(room_.own, i, s) - i * box_;
    float sum = 0;
    for (Index b = 0; b < ClosedBlocks(i); ++b) sum += Weight(i, b) * own[b * box_];
    return sum;
  }
  // Weighted scores of a row whose sum belongs to its denominator begin here.
  Index SummedFrom(Index s) const {
    if (!g_.normalized) return Visible(s);
    if (!g_.shared) return 0;
    return g_.causal ? room_.key_begin[room_.query_block[s]] : Visible(s);
  }

  const Problem& p_;
  const Head& head_;
  const DenseRoom& room_;
  const Geometry g_;
  const Map map_;
  const Index box_, rows_at_once_;
  Index nq_, nk_;
  Index expanded_ = -1;
};

template <class T, bool kPairs>
class DenseForward : DenseHead<T, kPairs> {
  using Base = DenseHead<T, kPairs>;
  using Base::g_, Base::head_, Base::nk_, Base::nq_, Base::p_, Base::room_;

 public:
  using Base::Base;

  void Run() {
    this->PackTransposed(p_.dk, room_.keys_t,
                         [&](Index t, Index count) HWY_ATTR { return this->Keys(t, count); });
    if constexpr (kPairs) PackRowPairs(this->Values(0, nk_), true, room_.values);
    else PackPanels(this->Values(0, nk_), room_.values);
    if (g_.shared) this->OwnDenominators();
    for (Index s = 0; s < nq_; s += this->rows_at_once_) {
      QueryRows(s, std::min(this->rows_at_once_, nq_ - s));
    }
  }

 private:
  void QueryRows(Index s, Index count) {
    const Index columns = this->Columns(s + count - 1);
    if constexpr (kPairs) PackColumnPairs(this->Queries(s, count), room_.q);
    else PackRows(this->Queries(s, count), room_.q);
    this->Scores(count, columns);
    for (Index r = 0; r < count; ++r) {
      room_.factor[r] = factor_of(p_, Weigh(s + r, r, columns));
      if (kPairs) PairColumns(r, columns);
    }
    const RowSummand product{room_.scores, this->Steps(columns), room_.values, this->Steps(nk_)};
    const Panels panels(p_.dv);
    const Index* at = room_.query_at + s;
    if (std::is_same_v<T, float> && p_.dv % kLanes == 0) {
      float* o = reinterpret_cast<float*>(head_.o.data);
      const auto to = [&](Index r, Index c) HWY_ATTR { return o + at[r] * head_.o.stride + c; };
      return MultiplyRows<false, kPairs>(&product, 1, count, panels, room_.factor, false, to);
    }
    const auto to = [&](Index r, Index c)
                        HWY_ATTR { return room_.result + r * panels.columns + c; };
    MultiplyRows<false, kPairs>(&product, 1, count, panels, room_.factor, false, to);
    Unpack<T, kPairs>(room_.result, panels.columns, head_.o, at, count, p_.dv);
  }

  // Weighs the scores of query s, zero behind its mask; returns its denominator. What is rounded is
  // rounded before it is summed, so that constants are preserved.
  float Weigh(Index s, Index r, Index columns) {
    this->Expand(room_.query_block[s]);
    const DF d;
    const Index visible = this->Visible(s), from = this->SummedFrom(s);
    VF sum = hn::Zero(d);
    for (Index c = 0; c < columns; c += kLanes) {
      float* at = this->At(room_.scores, r, c);
      VF x = hn::Mul(Load(at), Load(room_.weights + c));
      if (c + kLanes > visible) x = KeepFirst(visible - c, x);
      if (kPairs) x = Rounded(x);
      Store(x, at);
      if (c >= from) sum = hn::Add(sum, x);
      else if (c + kLanes > from) sum = hn::Add(sum, DropFirst(from - c, x));
    }
    const float open = hn::GetLane(hn::SumOfLanes(d, sum));
    return g_.shared ? this->SharedDenominator(s) + open : open;
  }
  // In place: pairs move towards the front.
  void PairColumns(Index r, Index columns) {
    const hn::Rebind<std::uint16_t, DF> d16;
    for (Index c = 0; c < columns; c += kLanes) {
      const VU bits = hn::BitCast(DU(), Load(this->At(room_.scores, r, c)));
      hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16,
                 reinterpret_cast<std::uint16_t*>(this->At(room_.scores, r, c / 2)));
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_DENSE_INL_H_
