// What of the CUDA backend was compiled for the emulator; the rest is absent.
#include "mhla/cuda/implementations.h"

#include <cuda_runtime.h>

#include "emulator.h"
#include "mhla/cuda/sm80/linear_kernels.h"

namespace mhla {
namespace {

// Serves everything, so that others may lean on it, until it is called.
constexpr Implementation kAbsent{
    .name = "absent",
    .refuses = [](const Problem&) { return std::optional<std::string>(); },
    .predict_seconds = [](const Problem&, const PlanOptions&) { return 1.0; },
    .forward_workspace = [](const Problem&, const PlanOptions&) { return std::size_t{0}; },
    .backward_workspace = [](const Problem&, const PlanOptions&) { return std::size_t{0}; },
    .forward = [](const PlanData&, const ForwardInputs&, const ForwardOutputs&, const Workspace&,
                  Stream) { emulator::stop("needs an implementation that was not compiled"); },
    .backward = [](const PlanData&, const BackwardInputs&, const BackwardOutputs&, const Workspace&,
                   Stream) { emulator::stop("needs an implementation that was not compiled"); },
    .prepare = [](const Problem&) { return std::shared_ptr<const void>(); }};

}  // namespace

namespace cuda {
#define MHLA_ABSENT(name) \
  [[gnu::weak]] const Implementation& name##_implementation() { return kAbsent; }
MHLA_ABSENT(linear)
MHLA_ABSENT(tf32)
MHLA_ABSENT(causal)
MHLA_ABSENT(columns)
MHLA_ABSENT(dense)
MHLA_ABSENT(fused)

// A width that was left out serves heads of no columns.
#define MHLA_ABSENT_WIDTH(type, width)                                   \
  [[gnu::weak]] const LinearKernels& linear_kernels_##type##_##width() { \
    static const LinearKernels none{};                                   \
    return none;                                                         \
  }
#define MHLA_ABSENT_WIDTHS(type) \
  MHLA_ABSENT_WIDTH(type, 32)    \
  MHLA_ABSENT_WIDTH(type, 64)    \
  MHLA_ABSENT_WIDTH(type, 80)    \
  MHLA_ABSENT_WIDTH(type, 96)    \
  MHLA_ABSENT_WIDTH(type, 128)   \
  MHLA_ABSENT_WIDTH(type, 256)
MHLA_ABSENT_WIDTHS(bf16)
MHLA_ABSENT_WIDTHS(f16)
MHLA_ABSENT_WIDTHS(f32)
MHLA_ABSENT_WIDTHS(tf32)

#define MHLA_ABSENT_LEAN(type)                                             \
  [[gnu::weak]] const LinearKernels& lean_kernels_##type(std::int64_t) {   \
    emulator::stop("needs kernels of little shared memory, not compiled"); \
  }
MHLA_ABSENT_LEAN(bf16)
MHLA_ABSENT_LEAN(f16)
MHLA_ABSENT_LEAN(f32)
MHLA_ABSENT_LEAN(tf32)
}  // namespace cuda

std::vector<const Implementation*> cuda_implementations() {
  std::vector<const Implementation*> all = {
      &cuda::fused_implementation(),   &cuda::causal_implementation(),
      &cuda::columns_implementation(), &cuda::dense_implementation(),
      &cuda::linear_implementation(),  &cuda::tf32_implementation()};
  std::erase(all, &kAbsent);
  return all;
}
const char* cuda_absence() { return nullptr; }

}  // namespace mhla
