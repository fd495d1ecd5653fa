// The reference as an entry of the planner: serves everything on the CPU, slowly.
#include "mhla/reference/reference.h"

#include "mhla/core/cost.h"
#include "mhla/core/half.h"

namespace mhla {
namespace {

std::optional<std::string> refuses(const Problem& problem) {
  if (problem.device.kind == Device::Kind::cpu) return std::nullopt;
  return "runs on the CPU, the problem is on " + to_string(problem.device);
}

double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kScalarRate = 2e9;  // flop/s of one core without blocking, measured on Zen 4
  return linear_cost(problem).forward_flops / kScalarRate;
}

std::size_t forward_bytes(const Problem& problem, const PlanOptions&) {
  return reference::forward_workspace(problem) * sizeof(double);
}

std::size_t backward_bytes(const Problem& problem, const PlanOptions&) {
  return reference::backward_workspace(problem) * sizeof(double);
}

void run_forward(const PlanData& plan, const ForwardInputs& in, const ForwardOutputs& out,
                 const Workspace& workspace, Stream) {
  with_dtype(plan.problem.dtype,
             [&]<typename T>(T) { reference::forward<T>(plan.problem, in, out, workspace); });
}

void run_backward(const PlanData& plan, const BackwardInputs& in, const BackwardOutputs& out,
                  const Workspace& workspace, Stream) {
  with_dtype(plan.problem.dtype,
             [&]<typename T>(T) { reference::backward<T>(plan.problem, in, out, workspace); });
}

bool adds_local(const Problem&, const std::array<std::int64_t, 3>&) { return true; }

constexpr Implementation kReference{.name = "reference",
                                    .refuses = refuses,
                                    .predict_seconds = predict_seconds,
                                    .forward_workspace = forward_bytes,
                                    .backward_workspace = backward_bytes,
                                    .forward = run_forward,
                                    .backward = run_backward,
                                    .adds_local = adds_local};

}  // namespace

std::vector<const Implementation*> reference_implementations() { return {&kReference}; }

}  // namespace mhla
