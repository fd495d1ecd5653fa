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

template <class T>
class HeadForward : HeadPass<T> {
  using Base = HeadPass<T>;
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
    float* mixed = slot_.mixed + i * this->stride_;
    for (Index begin = 0; begin < block.tokens(); begin += g_.tokens) {
      const Index count = std::min<Index>(g_.tokens, block.tokens() - begin);
      ListTokens(block, begin, count, s_.at);
      float* factor = s_.factor;
      const bool packed = this->Denominators(i, begin, count, false, factor);
      for (Index t = 0; t < count; ++t) factor[t] = this->Factor(factor[t]);
      if (!packed) PackRows(this->QueryRows(count), s_.a);
      if (g_.causal) this->PackOpenBlock(count);
      Ahead ahead = this->Next(head_.query_blocks, head_.mq, i, begin + count);
      ahead.Add(head_.q, p_.dk, sizeof(T)).Add(head_.o, p_.dv, sizeof(T));
      Products(i, count, mixed, factor, ahead);
      if (g_.causal && begin + count < block.tokens()) {
        this->AddChunk(this->Weight(i, i), s_.a2, s_.b, count, mixed);
      };
    }
  }

  void Products(Index i, Index count, const float* mixed, const float* factor, Ahead& ahead) {
    const Panels panels(p_.dv);
    RowSummand summands[2] = {{s_.a, p_.dk, mixed, p_.dk}, {}};
    int used = 1;
    if (g_.causal) {
      this->Scores(this->Weight(i, i), count, s_.a, s_.scores);
      summands[used++] = {s_.scores, count, s_.b, count, true};
    }
    if (std::is_same_v<T, float> && p_.dv % kLanes == 0) {
      float* o = reinterpret_cast<float*>(head_.o.data);
      const auto to = [&](Index r, Index c) HWY_ATTR { return o + s_.at[r] * head_.o.stride + c; };
      return MultiplyRows(summands, used, count, panels, factor, false, to, &ahead);
    }
    const auto to = [&](Index r, Index c) HWY_ATTR { return s_.result + r * panels.columns + c; };
    MultiplyRows(summands, used, count, panels, factor, false, to, &ahead);
    Unpack<T>(s_.result, panels.columns, head_.o, s_.at, count, p_.dv);
  }
};

template <class T>
void ForwardHeads(const ForwardCall& call, Team& team) {
  const auto run = [&](Index at, const Slot& slot, Team& workers) HWY_ATTR {
    const Head head = forward_head(call.problem, call.in, call.out, at);
    HeadForward<T>(call.problem, head, slot, call.scratch[team.rank()]).Run(workers);
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
