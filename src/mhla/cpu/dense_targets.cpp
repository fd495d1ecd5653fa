// Compiles the dense form once per instruction set; targets.cpp chooses.
#include "mhla/cpu/dense.h"
#include "mhla/cpu/team.h"

// NOTE: the sets of targets.cpp, which calls these functions by the names of their namespaces.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/cpu/dense_targets.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "mhla/cpu/dense_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

template <class T, bool kPairs>
void DenseForwardHeads(const DenseForwardCall& call, Team& team) {
  team.each(call.heads, [&](Index at) HWY_ATTR {
    const Head head = forward_head(call.problem, call.in, call.out, at);
    const DenseRoom& room = call.rooms[static_cast<std::size_t>(team.rank())];
    DenseForward<T, kPairs>(call.problem, head, room).Run();
  });
}

template <class T>
void DenseBackwardHeads(const DenseBackwardCall& call, Team& team) {
  const Problem& p = call.problem;
  const Index share = p.layout.mixing_size() * p.keys().mixing_size();
  team.each(1, [&](Index) HWY_ATTR { clear_mixing(call.out.d_mixing); });
  for (Index first = 0; first < call.heads; first += call.wave) {
    const Index count = std::min(call.wave, call.heads - first);
    team.each(count, [&](Index i) HWY_ATTR {
      const Head head = backward_head(p, call.in, call.out, first + i);
      const DenseRoom& room = call.rooms[static_cast<std::size_t>(team.rank())];
      DenseBackward<T>(p, head, room, call.d_mixing + i * share).Run();
    });
    team.each(p.layout.mixing_size(),
              [&](Index i) HWY_ATTR { add_shares(p, call.out, call.d_mixing, first, count, i); });
  }
}

template <bool kPairs>
void RunDense(const DenseForwardCall& call, Team& team) {
  switch (call.problem.dtype) {
    case DType::bf16: return DenseForwardHeads<BFloat16, kPairs>(call, team);
    case DType::f16: return DenseForwardHeads<Float16, false>(call, team);
    default: return DenseForwardHeads<float, false>(call, team);
  }
}

void DenseForwardAny(const DenseForwardCall& call, Team& team) { RunDense<false>(call, team); }
#if MHLA_CPU_PAIRS
void DenseForwardPairs(const DenseForwardCall& call, Team& team) { RunDense<true>(call, team); }
#endif
// NOTE: in f32 for all, since gradients of numerator and denominator have to cancel.
void DenseBackwardAny(const DenseBackwardCall& call, Team& team) {
  switch (call.problem.dtype) {
    case DType::bf16: return DenseBackwardHeads<BFloat16>(call, team);
    case DType::f16: return DenseBackwardHeads<Float16>(call, team);
    default: return DenseBackwardHeads<float>(call, team);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();
