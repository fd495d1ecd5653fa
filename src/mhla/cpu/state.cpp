// Streams on the CPU: the operations compiled once per instruction set, and their threads.
#include <memory>
#include <string_view>

#include "mhla/cpu/kernels.h"

// NOTE: the same sets as in targets.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/cpu/state.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "mhla/cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// A team costs a few microseconds, as much as reading this many bytes of a cache.
inline constexpr Index kBytesPerThread = 1 << 19;

int StateOps::threads(Index bytes, Index units) {
  const Index worth = std::min(bytes / kBytesPerThread, units);
  if (worth <= 1) return 1;
  return static_cast<int>(std::min<Index>(worth, thread_count(0)));
}

template <typename F>
void StateOps::each(int threads, Index count, F&& f) {
  struct Context {
    Index count;
    F& f;
  } context{count, f};
  Team::run(
      threads,
      [](void* data, Team& team) {
        auto& shared = *static_cast<Context*>(data);
        team.each(shared.count, [&](Index i) { shared.f(i, team.rank()); });
      },
      &context);
}

std::unique_ptr<streaming::Engine<float>> MakeEngine(
    const std::shared_ptr<const streaming::Setup>& setup) {
  return std::make_unique<streaming::HostEngine<StateOps>>(setup);
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla::streaming {

// The set that the other kernels use, so that a test's choice holds here too.
std::unique_ptr<Engine<float>> make_engine_f32(const std::shared_ptr<const Setup>& setup) {
  const std::string_view target = cpu::kernels().target;
#if HWY_TARGETS & HWY_AVX3
  if (target.starts_with("AVX3") || target.starts_with("AMX"))
    return cpu::N_AVX3::MakeEngine(setup);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (target == "AVX2") return cpu::N_AVX2::MakeEngine(setup);
#endif
  return cpu::HWY_STATIC_DISPATCH(MakeEngine)(setup);
}

}  // namespace mhla::streaming
#endif  // HWY_ONCE
