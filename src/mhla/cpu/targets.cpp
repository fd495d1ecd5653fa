// Compiles the kernels once per instruction set and chooses among them at run time.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "mhla/cpu/kernels.h"

// NOTE: three sets keep the compile time short: the baseline, AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/cpu/targets.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "mhla/cpu/deferred-inl.h"
#include "mhla/cpu/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {

// dense_targets.cpp
void DenseForwardAny(const DenseForwardCall& call, Team& team);
void DenseBackwardAny(const DenseBackwardCall& call, Team& team);
#if MHLA_CPU_PAIRS
void DenseForwardPairs(const DenseForwardCall& call, Team& team);
#endif

template <bool kPairs>
void Forward(const ForwardCall& call, Team& team) {
  if (kPairs && !pairs_up(call.problem)) return Forward<false>(call, team);
  switch (call.problem.dtype) {
    case DType::bf16: return ForwardHeads<BFloat16, kPairs>(call, team);
    case DType::f16: return ForwardHeads<Float16, false>(call, team);
    default: return ForwardHeads<float, false>(call, team);
  }
}

template <bool kPairs>
void Backward(const BackwardCall& call, Team& team) {
  if (kPairs && !pairs_up(call.problem)) return Backward<false>(call, team);
  const bool divides = call.problem.normalizer != Normalizer::none;
  switch (call.problem.dtype) {
    case DType::bf16:
      return divides ? BackwardHeads<BFloat16, false, kPairs>(call, team)
                     : BackwardHeads<BFloat16, kPairs>(call, team);
    case DType::f16: return BackwardHeads<Float16, false>(call, team);
    default: return BackwardHeads<float, false>(call, team);
  }
}

double Peak(double seconds) {
  constexpr Index kSteps = 128;
  std::vector<float> a(kMaxRows * kRowStride, 1e-3f), b(kSteps * kPanel, 1e-3f),
      c(kMaxRows * kPanel);
  const Term term{a.data(), b.data(), 0, kPanel, kSteps};
  TileOut out;
  for (int r = 0; r < kMaxRows; ++r) out.rows[r] = c.data() + r * kPanel;
  const TileFunction tile = TileFor<false>(kMaxRows, kPanel);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double elapsed = 0, best = 0;
  while (elapsed < seconds) {
    constexpr int kCalls = 200;
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) tile(&term, 1, out);
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::max(best, 2.0 * kCalls * kMaxRows * kPanel * kSteps / took.count());
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return best;
}

inline constexpr Kernels kKernels{
    "", Forward<false>, Backward<false>, DenseForwardAny, DenseBackwardAny, Peak, 0};
#if MHLA_CPU_PAIRS
inline constexpr Kernels kPairKernels{
    "", Forward<true>, Backward<true>, DenseForwardPairs, DenseBackwardAny, Peak, 0};
#endif
#if MHLA_CPU_AMX
void AmxForward(const ForwardCall& call, Team& team) {
  amx.on = true;
  Forward<true>(call, team);
  ReleaseRegisters();
}
void AmxBackward(const BackwardCall& call, Team& team) {
  amx.on = true;
  Backward<true>(call, team);
  ReleaseRegisters();
}
void AmxDenseForward(const DenseForwardCall& call, Team& team) {
  amx.on = true;
  DenseForwardPairs(call, team);
  ReleaseRegisters();
}
inline constexpr Kernels kAmxKernels{
    "", AmxForward, AmxBackward, AmxDenseForward, DenseBackwardAny, Peak, 0};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
// The condition of MHLA_CPU_AMX, which belongs to one target.
#if HWY_TARGETS & HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86_64 && defined(__linux__)
#define MHLA_CPU_HAS_AMX 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define MHLA_CPU_HAS_AMX 0
#endif

namespace mhla::cpu {
namespace {

// Matrix registers that the processor has and the system lets this process use.
[[maybe_unused]] bool has_amx() {
#if MHLA_CPU_HAS_AMX
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// NOTE: Highway's own table would link libhwy; asking the compiler's runtime keeps libmhla free of
// it.
std::vector<Kernels> runnable() {
  std::vector<Kernels> list;
  const auto add = [&](const char* target, Kernels kernels, double rate) {
    kernels.target = target;
    kernels.rate = rate;
    list.push_back(kernels);
  };
#if HWY_ARCH_X86
  __builtin_cpu_init();
#endif
#if HWY_TARGETS & HWY_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
#if HWY_COMPILER_GCC_ACTUAL  // see MHLA_CPU_PAIRS
    if (__builtin_cpu_supports("avx512bf16")) {
#if MHLA_CPU_HAS_AMX
      if (has_amx()) add("AMX_BF16", N_AVX3::kAmxKernels, 80e9);
#endif
      // NOTE: Intel's cores do such dot products at half the rate; f32 is faster there.
      if (!__builtin_cpu_is("intel")) add("AVX3_BF16", N_AVX3::kPairKernels, 80e9);
    }
#endif
    add("AVX3", N_AVX3::kKernels, 80e9);
#if HWY_COMPILER_GCC_ACTUAL
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("intel")) {
      add("AVX3_BF16", N_AVX3::kPairKernels, 80e9);
    }
#endif
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    add("AVX2", N_AVX2::kKernels, 75e9);
  }
#endif
  if (HWY_STATIC_TARGET != HWY_AVX3 && HWY_STATIC_TARGET != HWY_AVX2) {
    add("baseline", HWY_STATIC_DISPATCH(kKernels), 9e9);
  }
  return list;
}

const std::vector<Kernels>& all() {
  static const std::vector<Kernels> list = runnable();
  return list;
}

const Kernels* chosen_for_test = nullptr;

}  // namespace

const Kernels& kernels() { return chosen_for_test ? *chosen_for_test : all().front(); }

std::vector<std::string> runnable_targets() {
  std::vector<std::string> names;
  for (const Kernels& entry : all()) names.emplace_back(entry.target);
  return names;
}

void choose_target_for_test(std::string target) {
  chosen_for_test = nullptr;
  for (const Kernels& entry : all()) {
    if (target == entry.target) chosen_for_test = &entry;
  }
  if (!target.empty() && !chosen_for_test) {
    fail("cpu", "target: this machine does not run '", target, "'");
  }
}

}  // namespace mhla::cpu
#endif  // HWY_ONCE
