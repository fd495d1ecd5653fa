// Backward of one causal block where nothing divides: all that its tokens need in one visit.
//
// With D = d_o, R = tril(D V^T) and P = tril(Q K^T):
//   d_q = scale (D S~^T + m R K), d_k = V dS^T + m scale R^T Q, d_v = K dS + m scale P^T D,
//   d_m = scale <P, R>.
#if defined(MHLA_CPU_OPEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_OPEN_INL_H_
#undef MHLA_CPU_OPEN_INL_H_
#else
#define MHLA_CPU_OPEN_INL_H_
#endif

#include "mhla/cpu/backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void ScaleLower(float* rows, Index count, float factor) {
  for (Index r = 0; r < count; ++r) {
    float* row = rows + r * kRowStride;
    for (Index c = 0; c <= r; c += kLanes)
      Store(hn::Mul(hn::Set(DF(), factor), Load(row + c)), row + c);
  }
}

template <class T, bool kPairs, bool kSumPairs>
void HeadBackward<T, kPairs, kSumPairs>::OpenBlock(Index b) {
  const Block& block = head_.key_blocks[b];
  const Index count = block.tokens(), tokens = this->Steps(count);
  const Index keys = this->Steps(p_.dk), values = this->Steps(p_.dv);
  const float weight = this->Weight(b, b), scale = static_cast<float>(p_.scale);
  ListTokens(block, 0, count, s_.at);
  Ahead next = this->Next(head_.key_blocks, head_.mk, b, count), more = next;
  next.Add(head_.q, p_.dk, sizeof(T)).Add(head_.k, p_.dk, sizeof(T));
  more.Add(head_.v, p_.dv, sizeof(T)).Add(head_.d_o, p_.dv, sizeof(T));
  Ahead here(s_.at, count);
  here.Add(head_.d_q, p_.dk, sizeof(T)).Add(head_.d_v, p_.dv, sizeof(T));
  here.Add(head_.d_k, p_.dk, sizeof(T));

  // P and R, and the gradient of this block's own weight.
  const auto lower = [&](const float* a, Index k, const float* other, float* to) HWY_ATTR {
    TransposeRows(other, count, k, s_.b2);
    this->template LowerProduct<kPairs>(a, k, s_.b2, 1, count, to);
  };
  PackOperand(this->QueryRows(count), s_.a);
  PackOperand(this->Keys(count), s_.a3);
  lower(s_.a, keys, s_.a3, s_.scores);
  PackOperand(OutputGradients(count), s_.a);
  PackOperand(this->Values(count), s_.a2);
  lower(s_.a, values, s_.a2, s_.scores2);
  float dot = 0;
  for (Index r = 0; r < count; ++r) {
    dot += Dot(s_.scores + r * kRowStride, s_.scores2 + r * kRowStride, round_up(r + 1, kLanes));
  }
  slot_.d_mixing[b * head_.mk + b] += scale * dot;
  const float* transposed = s_.scores2;  // R^T Q
  const float* rest = nullptr;           // what it still lacks
  float factor[kMaxRows];
  std::fill(factor, factor + kMaxRows, scale);
  if constexpr (kPairs) {
    PairLowerRows(s_.scores, count, weight * scale, s_.scores);
    PairLowerRows(s_.scores2, count, weight * scale, s_.scores3);
    PairLowerColumns(s_.scores2, count, weight);
    transposed = s_.scores3;
  } else {
    ScaleLower(s_.scores, count, weight * scale);
    ScaleLower(s_.scores2, count, weight);
    rest = factor;
  }

  const auto panels = [&](const Source<T>& from, float* to) HWY_ATTR {
    if constexpr (kPairs) PackRowPairs(from, true, to);
    else PackPanels(from, to);
  };
  const auto result = [&](Index r, Index c) HWY_ATTR { return Result(r, c); };
  if (head_.d_q.data) {
    panels(this->Keys(count), s_.b);
    std::fill(s_.factor, s_.factor + count, scale);
    const RowSummand summands[2] = {{s_.a, values, Operand(this->Summaries(), b), values},
                                    {s_.scores2, tokens, s_.b, tokens, true}};
    MultiplyRows<false, kPairs>(summands, 2, count, Panels(p_.dk), s_.factor, false, result, &here);
    StoreGradient<kSumPairs>({.rows = s_.result, .stride = g_.dk_padded}, this->QueryRows(count),
                             head_.d_q);
  }
  const Stack gradients = Gradients();
  if (head_.d_k.data) {
    panels(this->QueryRows(count), s_.b);
    const RowSummand product{s_.a2, values, Operand(gradients, b), values};
    MultiplyRows<false, kPairs>(&product, 1, count, Panels(p_.dk), nullptr, false, result, &next);
    MultiplyTransposed<true, kPairs>(transposed, count, tokens, s_.b, Panels(p_.dk), rest, true,
                                     result);
    StoreGradient<kSumPairs>({.rows = s_.result, .stride = g_.dk_padded}, this->Keys(count),
                             head_.d_k);
  }
  if (head_.d_v.data) {
    panels(OutputGradients(count), s_.b3);
    if (!head_.d_k.data) Operand(gradients, b);
    if constexpr (kPairs) TransposePairs(s_.paired, p_.dv, p_.dk, s_.matrix);
    else TransposePanels(s_.flat, p_.dv, p_.dk, s_.matrix);
    const RowSummand product{s_.a3, keys, s_.matrix, keys};
    const Panels columns(p_.dv);
    const auto write = [&](auto&& out) HWY_ATTR {
      MultiplyRows<false, kPairs>(&product, 1, count, columns, nullptr, false, out, &more);
      MultiplyTransposed<true, kPairs>(s_.scores, count, tokens, s_.b3, columns, nullptr, true,
                                       out);
    };
    WriteValueGradient(count, write);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_OPEN_INL_H_
