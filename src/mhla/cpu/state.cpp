// Streams on the CPU: the operations compiled once per instruction set, and their threads.
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

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

// Units [begin, end) that threads take one by one.
struct alignas(64) Queue {
  std::atomic<Index> next{0};
  Index end = 0;

  void set(Index begin, Index behind) {
    next.store(begin);
    end = behind;
  }
  template <typename F>
  void drain(F&& f) {
    for (Index i = next.fetch_add(1); i < end; i = next.fetch_add(1)) f(i);
  }
};

// A thread's own lanes come before what anybody may do, and others' lanes after it.
template <typename F>
void StateOps::each(int threads, const streaming::Units& units, F&& f) {
  if (threads <= 1) {
    for (Index i = 0; i < units.count; ++i) f(i, 0);
    return;
  }
  const Index behind = units.near + units.lanes;
  Queue before, after;
  before.set(0, units.near);
  after.set(behind, units.count);
  std::vector<Queue> lanes(static_cast<std::size_t>(threads));
  for (Index t = 0; t < threads; ++t) {
    lanes[static_cast<std::size_t>(t)].set(units.near + t * units.lanes / threads,
                                           units.near + (t + 1) * units.lanes / threads);
  }
  auto work = [&](int rank) {
    const auto one = [&](Index i) { f(i, rank); };
    const auto drain_lanes = [&](int of) { lanes[static_cast<std::size_t>(of)].drain(one); };
    before.drain(one);
    drain_lanes(rank);
    after.drain(one);
    for (int t = 1; t < threads; ++t) drain_lanes((rank + t) % threads);
  };
  Team::run(
      threads,
      [](void* context, Team& team) { (*static_cast<decltype(work)*>(context))(team.rank()); },
      &work);
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
