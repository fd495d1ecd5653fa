// Dense form, backward: scores again, then gradients from the same few rows.
//
// With P = phi(q) phi(k)^T, w the weights by pair, r = scale / denominator and G = r d_o:
//   E = G V^T + d_den, d_den = -r <w P, G V^T> (<d_o, o>, in f32 whatever o is stored in);
//   d_q = (w E) K, d_k = (w E)^T Q, d_v = (w P)^T G, d_m = sum of P E over the block pair.
#if defined(MHLA_CPU_DENSE_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_DENSE_BACKWARD_INL_H_
#undef MHLA_CPU_DENSE_BACKWARD_INL_H_
#else
#define MHLA_CPU_DENSE_BACKWARD_INL_H_
#endif

#include "mhla/cpu/dense-inl.h"
#include "mhla/cpu/gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

template <class T>
class DenseBackward : DenseHead<T, false> {
  using Base = DenseHead<T, false>;
  using Base::g_, Base::head_, Base::nk_, Base::nq_, Base::p_, Base::room_;

 public:
  // d_mixing: this head's share [Mq, Mk].
  DenseBackward(const Problem& problem, const Head& head, const DenseRoom& room, float* d_mixing)
      : Base(problem, head, room), d_mixing_(d_mixing) {}

  void Run() {
    const auto keys = [&](Index t, Index n) HWY_ATTR { return this->Keys(t, n); };
    const auto values = [&](Index t, Index n) HWY_ATTR { return this->Values(t, n); };
    this->PackTransposed(p_.dk, room_.keys_t, keys);
    this->PackTransposed(p_.dv, room_.values_t, values);
    PackPanels(this->Keys(0, nk_), room_.keys);
    if (g_.shared) this->OwnDenominators();
    if (g_.shared) Clear(room_.d_den, head_.mq * this->box_);
    Clear(room_.d_k, nk_ * g_.dk_padded);
    Clear(room_.d_v, nk_ * g_.dv_padded);
    Clear(room_.d_weights, round_up(nk_, kLanes));
    Clear(d_mixing_, head_.mq * head_.mk);
    for (Index s = 0; s < nq_; s += this->rows_at_once_) {
      QueryRows(s, std::min(this->rows_at_once_, nq_ - s));
    }
    if (g_.shared) SharedGradients();
    const MappedGradient d_q{.rows = room_.d_q, .stride = g_.dk_padded};
    const MappedGradient d_k{.rows = room_.d_k, .stride = g_.dk_padded};
    if (head_.d_q.data) StoreGradient<false>(d_q, this->Queries(0, nq_), head_.d_q);
    if (head_.d_k.data) StoreGradient<false>(d_k, this->Keys(0, nk_), head_.d_k);
    if (!head_.d_v.data) return;
    Unpack<T>(room_.d_v, g_.dv_padded, head_.d_v, room_.key_at, nk_, p_.dv);
  }

 private:
  // Columns of a key that are summed at a time: half of 128 halves the growth of the error, and is
  // a second pass over the scores (docs/verification.md).
  static constexpr Index kSummedColumns = 64;

  void QueryRows(Index s, Index count) {
    const Index columns = this->Columns(s + count - 1);
    PackRows(this->Queries(s, count), room_.q);
    // In parts: d_m has the error of all scores of a pair of blocks, where the linear form has that
    // of sums over a block.
    for (Index from = 0; from < p_.dk; from += kSummedColumns) {
      this->AddScores(from, std::min(from + kSummedColumns, p_.dk), count, columns);
    }
    for (Index r = 0; r < count; ++r) {
      room_.factor[r] = factor_of(p_, g_.normalized ? Denominator(s + r, r) : 0.0f);
    }
    const Source<T> d_o{head_.d_o, room_.query_at + s, count, p_.dv, {}};
    PackScaled(d_o, room_.factor, false, room_.g);
    const RowSummand with_values{room_.g, p_.dv, room_.values_t, p_.dv};
    MultiplyRows(&with_values, 1, count, Panels(columns), nullptr, false,
                 [&](Index r, Index c) HWY_ATTR { return this->At(room_.d_scores, r, c); });
    for (Index r = 0; r < count; ++r) Gradients(s + r, r, columns);

    const Panels keys(p_.dk), values(p_.dv);
    const RowSummand with_keys{room_.d_scores, columns, room_.keys, nk_};
    MultiplyRows(&with_keys, 1, count, keys, nullptr, false,
                 [&](Index r, Index c) HWY_ATTR { return room_.d_q + (s + r) * g_.dk_padded + c; });
    PackPanels(this->Queries(s, count), room_.q_panels);
    MultiplyTransposed(room_.d_scores, columns, count, room_.q_panels, keys, nullptr, true,
                       [&](Index r, Index c) HWY_ATTR { return room_.d_k + r * g_.dk_padded + c; });
    PackScaled(d_o, room_.factor, true, room_.g_panels);
    MultiplyTransposed(room_.scores, columns, count, room_.g_panels, values, nullptr, true,
                       [&](Index r, Index c) HWY_ATTR { return room_.d_v + r * g_.dv_padded + c; });
  }

  float Denominator(Index s, Index r) {
    this->Expand(room_.query_block[s]);
    const Index visible = this->Visible(s), from = this->SummedFrom(s);
    VF sum = hn::Zero(DF());
    for (Index c = from / kLanes * kLanes; c < visible; c += kLanes) {
      VF x = hn::Mul(Load(this->At(room_.scores, r, c)), Load(room_.weights + c));
      if (c < from) x = DropFirst(from - c, x);
      sum = hn::Add(sum, c + kLanes > visible ? KeepFirst(visible - c, x) : x);
    }
    const float open = hn::GetLane(hn::SumOfLanes(DF(), sum));
    return g_.shared ? this->SharedDenominator(s) + open : open;
  }

  // Row r: G V^T becomes w E, P becomes w P, and P E joins the gradient of its block's weights.
  void Gradients(Index s, Index r, Index columns) {
    const DF d;
    const Index i = room_.query_block[s], visible = this->Visible(s), from = this->SummedFrom(s);
    this->Expand(i);
    float d_den = 0;
    if (g_.normalized) {
      VF dot = hn::Zero(d);
      for (Index c = 0; c < visible; c += kLanes) {
        const VF score = hn::Mul(Load(this->At(room_.scores, r, c)), Load(room_.weights + c));
        const VF x = hn::Mul(score, Load(this->At(room_.d_scores, r, c)));
        dot = hn::Add(dot, c + kLanes > visible ? KeepFirst(visible - c, x) : x);
      }
      d_den = -room_.factor[r] * hn::GetLane(hn::SumOfLanes(d, dot));
      if (g_.shared) *this->Own(room_.d_den, i, s) = d_den;
    }
    const VF added = hn::Set(d, d_den);
    for (Index c = 0; c < columns; c += kLanes) {
      float* score = this->At(room_.scores, r, c);
      float* d_score = this->At(room_.d_scores, r, c);
      const VF weight = Load(room_.weights + c);
      VF p = Load(score), e = Load(d_score);
      if (c + kLanes > from) e = hn::Add(e, c < from ? DropFirst(from - c, added) : added);
      if (c + kLanes > visible) p = KeepFirst(visible - c, p), e = KeepFirst(visible - c, e);
      Store(hn::MulAdd(p, e, Load(room_.d_weights + c)), room_.d_weights + c);
      Store(hn::Mul(weight, p), score);
      Store(hn::Mul(weight, e), d_score);
    }
    if (s + 1 == room_.query_begin[i + 1]) CloseBlock(i);
  }
  // All queries of block i are done: its weights' gradients are sums over the keys of each block.
  void CloseBlock(Index i) {
    for (Index b = 0; b < this->SeenBlocks(i); ++b) {
      float sum = 0;
      for (Index t = room_.key_begin[b]; t < room_.key_begin[b + 1]; ++t) sum += room_.d_weights[t];
      d_mixing_[i * head_.mk + b] += sum;
    }
    Clear(room_.d_weights, round_up(nk_, kLanes));
  }

  // shared_position: den(i, w) = sum over b of m_ib q(b, w) . z_b.
  void SharedGradients() {
    for (Index b = 0; b < head_.mk; ++b) {
      Clear(room_.d_own, this->box_);
      for (Index i = 0; i < head_.mq; ++i) {
        if (b >= this->ClosedBlocks(i)) continue;
        const float* d_den = room_.d_den + i * this->box_;
        AddScaled(this->Weight(i, b), d_den, room_.d_own, this->box_);
        d_mixing_[i * head_.mk + b] += Dot(d_den, room_.own + b * this->box_, this->box_);
      }
      float* d_sum = room_.result;
      Clear(d_sum, g_.dk_padded);
      this->EachChunk(b, [&](Index t, Index count) HWY_ATTR {
        PackRows(this->Queries(t, count), room_.rows);
        for (Index r = 0; r < count; ++r) {
          const float d_own = *(this->Own(room_.d_own, b, t + r) - b * this->box_);
          AddScaled(d_own, room_.sums + b * g_.dk_padded, room_.d_q + (t + r) * g_.dk_padded,
                    g_.dk_padded);
          AddScaledRow(d_own, room_.rows, r, d_sum, p_.dk);
        }
      });
      for (Index t = room_.key_begin[b]; t < room_.key_begin[b + 1]; ++t) {
        AddScaled(1, d_sum, room_.d_k + t * g_.dk_padded, g_.dk_padded);
      }
    }
  }

  float* const d_mixing_;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_DENSE_BACKWARD_INL_H_
