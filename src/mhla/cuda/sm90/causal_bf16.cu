// Instances and launch of the causal forward.
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/causal_far.cuh"
#include "mhla/cuda/sm90/causal_forward.cuh"

namespace mhla::cuda::sm90 {
namespace {

struct Instance {
  CausalWidths widths;
  int bytes;
  void (*entry)(CausalArgs);
};
template <int DK, int DV>
constexpr Instance instance() {
  return {{DK, DV}, causal_plan(DK, DV).bytes, causal_forward<DK, DV>};
}
// From narrow to wide.
constexpr Instance kInstances[] = {instance<64, 64>(), instance<128, 128>(), instance<128, 256>()};

}  // namespace

CausalWidths causal_widths(std::int64_t dk, std::int64_t dv) {
  for (const Instance& entry : kInstances) {
    if (dk <= entry.widths.dk && dv <= entry.widths.dv) return entry.widths;
  }
  return {};
}

void launch_causal(const CausalWidths& widths, int grid, const CausalArgs& args, void* stream) {
  for (const Instance& entry : kInstances) {
    if (entry.widths.dk != widths.dk || entry.widths.dv != widths.dv) continue;
    allow_shared(reinterpret_cast<const void*>(entry.entry), entry.bytes);
    // NOTE: what reads `far` waits for the kernel that makes it.
    return launch(entry.entry, {.x = grid}, kCausalThreads, entry.bytes, stream, args,
                  args.far != nullptr);
  }
  fail(ErrorCode::internal, "cuda.causal", "no kernel of widths ", widths.dk, " and ", widths.dv);
}

void launch_causal_far(int grid, const CausalFarArgs& args, void* stream) {
  allow_shared(reinterpret_cast<const void*>(causal_far), CausalFarPlan::kBytes);
  launch(causal_far, {.x = grid}, kFarThreads, CausalFarPlan::kBytes, stream, args);
}

}  // namespace mhla::cuda::sm90
