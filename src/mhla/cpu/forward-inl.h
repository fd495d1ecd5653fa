// Forward pass of one head: summaries, mixing, read-out.
#if defined(MHLA_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_FORWARD_INL_H_
#undef MHLA_CPU_FORWARD_INL_H_
#else
#define MHLA_CPU_FORWARD_INL_H_
#endif

#include "mhla/cpu/head-inl.h"
#include "mhla/cpu/kernels.h"
#include "mhla/cpu/team.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

template <class T, bool kPairs>
class HeadForward : HeadPass<T, kPairs> {
  using Base = HeadPass<T, kPairs>;
  using Base::f_, Base::g_, Base::head_, Base::p_, Base::s_, Base::slot_;

 public:
  HeadForward(const Problem& problem, const Head& head, const Slot& slot, const Scratch& scratch)
      : Base(problem, head, slot, scratch, false) {}

  void Run(Team& team) {
    this->PrepareMixed(team);
    team.each(head_.mq, [&](Index i) HWY_ATTR { ReadOut(i); });
  }

 private:
  void ReadOut(Index i) {
    const Block& block = head_.query_blocks[i];
    float* mixed = this->Mixed(i);
    const float* operand = kPairs && !this->halved_ ? s_.matrix : mixed;
    if (operand != mixed) PairRows(mixed, p_.dk, p_.dv, s_.matrix);
    for (Index begin = 0; begin < block.tokens(); begin += g_.tokens) {
      const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
      ListTokens(block, begin, count, s_.at);
      float* factor = s_.factor;
      const bool packed = this->Denominators(mixed, i, begin, count, false, factor);
      for (Index t = 0; t < count; ++t) factor[t] = this->Factor(factor[t]);
      if (!packed) PackQueries(count);
      if (g_.causal) this->PackOpenBlock(count);
      Ahead ahead = this->Next(head_.query_blocks, head_.mq, i, begin + count);
      ahead.Add(head_.q, p_.dk, sizeof(T)).Add(head_.o, p_.dv, sizeof(T));
      Products(i, count, operand, factor, ahead);
      if (g_.causal && begin + count < block.tokens()) CloseChunk(this->Weight(i, i), count, mixed);
    }
  }

  void PackQueries(Index count) {
    if constexpr (kPairs) PackColumnPairs(this->QueryRows(count), s_.a);
    else PackRows(this->QueryRows(count), s_.a);
  }

  // A block longer than a chunk: the chunk joins S~_i before the next one is read out.
  void CloseChunk(float weight, Index count, float* mixed) {
    if constexpr (kPairs) PackRowPairs(this->Keys(count), false, s_.a2);
    this->template AddChunk<kPairs>(weight, s_.a2, s_.b, count, mixed);
    if (kPairs) PairRows(mixed, p_.dk, p_.dv, s_.matrix);
  }

  void Products(Index i, Index count, const float* summary, const float* factor, Ahead& ahead) {
    const Panels panels(p_.dv);
    const Index features = this->Steps(p_.dk), tokens = this->Steps(count);
    RowSummand summands[2] = {{s_.a, features, summary, features}, {}};
    int used = 1;
    if (g_.causal) {
      this->Scores(this->Weight(i, i), count, s_.a, s_.scores);
      summands[used++] = {s_.scores, tokens, s_.b, tokens, true};
    }
    if (std::is_same_v<T, float> && p_.dv % kLanes == 0) {
      float* o = reinterpret_cast<float*>(head_.o.data);
      const auto to = [&](Index r, Index c) HWY_ATTR { return o + s_.at[r] * head_.o.stride + c; };
      return MultiplyRows<false, kPairs>(summands, used, count, panels, factor, false, to, &ahead);
    }
    const auto to = [&](Index r, Index c) HWY_ATTR { return s_.result + r * panels.columns + c; };
    MultiplyRows<false, kPairs>(summands, used, count, panels, factor, false, to, &ahead);
    Unpack<T, kPairs>(s_.result, panels.columns, head_.o, s_.at, count, p_.dv);
  }
};

template <class T, bool kPairs>
void ForwardHeads(const ForwardCall& call, Team& team) {
  const auto run = [&](Index at, const Slot& slot, Team& workers) HWY_ATTR {
    const Head head = forward_head(call.problem, call.in, call.out, at);
    HeadForward<T, kPairs>(call.problem, head, slot, call.scratch[team.rank()]).Run(workers);
  };
  team.each(call.alone, [&](Index at) HWY_ATTR {
    Team alone;
    run(at, call.slots[team.rank()], alone);
  });
  for (Index at = call.alone; at < call.heads; ++at) run(at, call.slots[0], team);
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#endif  // MHLA_CPU_FORWARD_INL_H_
