// Backward, second part: gradients that wait for mixing (shared_position) or live in the open block
// of a causal mask.
#if defined(MHLA_CPU_DEFERRED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_DEFERRED_INL_H_
#undef MHLA_CPU_DEFERRED_INL_H_
#else
#define MHLA_CPU_DEFERRED_INL_H_
#endif

#include "mhla/cpu/open-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// d_q and d_q_den of block i, chunk by chunk; d_sum += the denominator's share of dz_i.
template <class T, bool kPairs, bool kSumPairs>
void HeadBackward<T, kPairs, kSumPairs>::DeferredQueries(Index i, float* d_sum) {
  const Block& block = head_.query_blocks[i];
  const float* mixed = this->Mixed(i);
  for (Index begin = 0; begin < block.tokens(); begin += g_.tokens) {
    const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
    ListTokens(block, begin, count, s_.at);
    float* factor = s_.factor;
    float* d_den = s_.factor + g_.tokens;
    RecallFactors(count, factor, d_den);
    PackScaled(OutputGradients(count), factor, false, s_.a2);
    if (kPairs) PackScaledPairs(OutputGradients(count), factor, s_.a);
    TimesMatrix(kPairs ? s_.a : s_.a2, p_.dv, Operand(mixed, p_.dv, p_.dk), count);
    if (g_.causal) OpenQueries(i, begin, count, begin + count == block.tokens());
    RecallFactors(count, factor, d_den);
    float* den_rows = p_.separate_denominator ? s_.b : s_.result;
    if (p_.separate_denominator) Clear(den_rows, count * g_.dk_padded);
    if (g_.normalized) DenominatorRows(i, begin, count, d_den, den_rows, d_sum);
    const MappedGradient joined{.rows = s_.result, .stride = g_.dk_padded};
    const MappedGradient own{.rows = den_rows, .stride = g_.dk_padded};
    if (head_.d_q.data) StoreGradient<kSumPairs>(joined, this->QueryRows(count), head_.d_q);
    if (head_.d_q_den.data) StoreGradient<kSumPairs>(own, this->DenQueries(count), head_.d_q_den);
  }
}

// s_.result += m_ii tril(G V^T) K, the product G V^T staying in s_.scores2. Of earlier chunks of
// the same block, s_.open holds V^T K.
template <class T, bool kPairs, bool kSumPairs>
void HeadBackward<T, kPairs, kSumPairs>::OpenQueries(Index i, Index begin, Index count, bool last) {
  const float weight = this->Weight(i, i);
  PackRows(this->Values(count), s_.a);
  TransposeRows(s_.a, count, p_.dv, s_.b2);
  this->template LowerProduct<false>(s_.a2, p_.dv, s_.b2, 1, count, s_.scores2);
  PackPanels(this->Keys(count), s_.b);
  float* factor = s_.factor + 2 * g_.tokens;
  std::fill(factor, factor + count, weight);
  const RowSummand triangle{s_.scores2, count, s_.b, count, true};
  MultiplyRows(&triangle, 1, count, Panels(p_.dk), factor, true,
               [&](Index r, Index c) HWY_ATTR { return Result(r, c); });
  if (begin > 0) {
    // Keys of earlier chunks, whole: their share of d_q, and of d_m through q.
    float* rows = s_.b3;
    const RowSummand earlier{s_.a2, p_.dv, s_.open, p_.dv};
    MultiplyRows(&earlier, 1, count, Panels(p_.dk), nullptr, false,
                 [&](Index r, Index c) HWY_ATTR { return rows + r * g_.dk_padded + c; });
    PackRows(this->QueryRows(count), s_.a3);
    for (Index t = 0; t < count; ++t) {
      slot_.d_mixing[i * head_.mk + i] += RowDot(s_.a3, t, rows + t * g_.dk_padded, p_.dk);
      AddScaled(weight, rows + t * g_.dk_padded, Result(t, 0), g_.dk_padded);
    }
  }
  if (last) return;
  if (begin == 0) Clear(s_.open, f_.size);
  this->template AddChunk<false>(1, s_.a, s_.b, count, s_.open);
}

// rows[t] += gradient of phi(q_den), whose part of the open block also gives d_m.
template <class T, bool kPairs, bool kSumPairs>
void HeadBackward<T, kPairs, kSumPairs>::DenominatorRows(Index i, Index begin, Index count,
                                                         const float* d_den, float* rows,
                                                         float* d_sum) {
  const Block& block = head_.query_blocks[i];
  const float* own = slot_.d_summaries + i * stride_ + f_.extra;  // shared: by coordinate
  PackRows(this->DenQueries(count), s_.a3);
  if (g_.shared) {
    for (Index t = 0; t < count; ++t) {
      const float d_own = own[this->Coordinate(block, begin + t)];
      AddScaled(d_own, slot_.sums + i * g_.dk_padded, rows + t * g_.dk_padded, g_.dk_padded);
      AddScaledRow(d_own, s_.a3, t, d_sum, p_.dk);
    }
  }
  if (!g_.causal) return;
  const float weight = this->Weight(i, i);
  float* sum = s_.row + g_.dk_padded;  // keys of the open block so far
  if (begin == 0) Clear(sum, g_.dk_padded);
  PackRows(this->DenKeys(count), s_.a2);
  float d_weight = 0;
  for (Index t = 0; t < count; ++t) {
    float* row = rows + t * g_.dk_padded;
    AddScaledRow(1, s_.a2, t, sum, p_.dk);
    AddScaled(d_den[t] * weight, sum, row, g_.dk_padded);
    if (!g_.shared) AddScaled(d_den[t], slot_.mixed + i * stride_ + f_.extra, row, g_.dk_padded);
    d_weight += d_den[t] * RowDot(s_.a3, t, sum, p_.dk);
  }
  slot_.d_mixing[i * head_.mk + i] += d_weight;
}

// d_k and d_v of a causal block: a key is seen by later queries of its own block, so chunks are
// walked backwards and join d_summary once they are done.
template <class T, bool kPairs, bool kSumPairs>
void HeadBackward<T, kPairs, kSumPairs>::CausalKeys(Index b, float* d_summary, const float* d_sum) {
  const Block& block = head_.key_blocks[b];
  const float weight = this->Weight(b, b);
  const Index chunks = (block.tokens() + g_.tokens - 1) / g_.tokens;
  Clear(s_.row + 3 * g_.dk_padded, g_.dk_padded);
  for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
    const Index begin = chunk * g_.tokens;
    const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
    ListTokens(block, begin, count, s_.at);
    float* factor = s_.factor;
    float* d_den = s_.factor + g_.tokens;
    PackRows(this->Values(count), s_.a);
    if (chunks > 1) {  // otherwise DeferredQueries has left G V^T
      RecallFactors(count, factor, d_den);
      PackScaled(OutputGradients(count), factor, false, s_.a3);
      TransposeRows(s_.a, count, p_.dv, s_.b2);
      this->template LowerProduct<false>(s_.a3, p_.dv, s_.b2, 1, count, s_.scores2);
    }
    PackRows(this->QueryRows(count), s_.a3);
    PackRows(this->Keys(count), s_.a2);
    TransposeRows(s_.a2, count, p_.dk, s_.b2);
    this->template LowerProduct<false>(s_.a3, p_.dk, s_.b2, 1, count, s_.scores);
    for (Index r = 0; r < count; ++r) {
      slot_.d_mixing[b * head_.mk + b] += Dot(s_.scores + r * kRowStride,
                                              s_.scores2 + r * kRowStride, round_up(r + 1, kLanes));
    }
    RecallFactors(count, factor, d_den);
    PackScaled(OutputGradients(count), factor, true, s_.b3);
    if (head_.d_v.data) {
      TransposePanels(d_summary, p_.dv, p_.dk, s_.matrix);
      if (kSumPairs) PackOperand<kSumPairs>(this->Keys(count), s_.a2);
      ValueGradient(count, weight, s_.scores);
    }
    PackPanels(this->QueryRows(count), s_.b);
    if (kPairs) PackOperand(this->Values(count), s_.a);
    TimesMatrix(s_.a, p_.dv, Operand(d_summary, p_.dv, p_.dk), count);
    const auto out = [&](Index r, Index c) HWY_ATTR { return Result(r, c); };
    float weights[kMaxRows];
    std::fill(weights, weights + kMaxRows, weight);
    MultiplyTransposed<true>(s_.scores2, count, count, s_.b, Panels(p_.dk), weights, true, out);

    float* den_rows = p_.separate_denominator ? s_.b2 : s_.result;
    if (p_.separate_denominator) Clear(den_rows, count * g_.dk_padded);
    if (g_.normalized) OpenKeyRows(count, weight, d_den, d_sum, den_rows);
    const MappedGradient joined{.rows = s_.result, .stride = g_.dk_padded};
    const MappedGradient own{.rows = den_rows, .stride = g_.dk_padded};
    if (head_.d_k.data) StoreGradient<kSumPairs>(joined, this->Keys(count), head_.d_k);
    if (head_.d_k_den.data) StoreGradient<kSumPairs>(own, this->DenKeys(count), head_.d_k_den);
    if (chunk == 0) break;
    PackScaled(OutputGradients(count), factor, false, s_.a3);
    this->template AddChunk<false>(weight, s_.a3, s_.b, count, d_summary);
  }
}

// rows[t] += dz_b + weight * (sum of d_den phi(q_den) over the block from t on).
template <class T, bool kPairs, bool kSumPairs>
void HeadBackward<T, kPairs, kSumPairs>::OpenKeyRows(Index count, float weight, const float* d_den,
                                                     const float* d_sum, float* rows) {
  float* later = s_.row + 3 * g_.dk_padded;
  PackRows(this->DenQueries(count), s_.a3);
  for (Index t = count - 1; t >= 0; --t) {
    float* row = rows + t * g_.dk_padded;
    AddScaledRow(d_den[t], s_.a3, t, later, p_.dk);
    AddScaled(weight, later, row, g_.dk_padded);
    AddScaled(1, d_sum, row, g_.dk_padded);
  }
}

template <class T, bool kPairs, bool kSumPairs = kPairs>
void BackwardHeads(const BackwardCall& call, Team& team) {
  const Problem& p = call.problem;
  const Index share = p.layout.mixing_size() * p.keys().mixing_size();
  const auto run = [&](Index at, Index place, int slot_number, Team& workers) HWY_ATTR {
    const Head head = backward_head(p, call.in, call.out, at);
    Slot slot = call.slots[static_cast<std::size_t>(slot_number)];
    slot.d_mixing = call.d_mixing + place * share;
    HeadBackward<T, kPairs, kSumPairs>(p, head, slot,
                                       call.scratch[static_cast<std::size_t>(team.rank())])
        .Run(workers);
  };
  const auto add = [&](Index first, Index count) HWY_ATTR {
    team.each(p.layout.mixing_size(),
              [&](Index i) HWY_ATTR { add_shares(p, call.out, call.d_mixing, first, count, i); });
  };
  team.each(1, [&](Index) HWY_ATTR { clear_mixing(call.out.d_mixing); });
  for (Index first = 0; first < call.alone; first += call.wave) {
    const Index count = std::min(call.wave, call.alone - first);
    team.each(count, [&](Index i) HWY_ATTR {
      Team alone;
      run(first + i, i, team.rank(), alone);
    });
    add(first, count);
  }
  for (Index at = call.alone; at < call.heads; ++at) {
    run(at, 0, 0, team);
    add(at, 1);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_DEFERRED_INL_H_
