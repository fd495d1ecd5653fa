// The SIMD kernels as an entry of the planner.
#include <algorithm>
#include <utility>

#include "mhla/core/cost.h"
#include "mhla/core/implementation.h"
#include "mhla/cpu/kernels.h"

namespace mhla {
namespace {

using cpu::Index;

// Heads with more memory than this, summaries and tensors, are shared by all threads, which then
// need one set of summaries in their caches. Others go to single threads: that saves the barriers,
// and summaries do not travel between cores, which need not have a cache in common.
constexpr double kSharedHeadBytes = 24e6;

// Heads per thread between two barriers of the backward pass.
constexpr Index kHeadsAtOnce = 8;

double head_bytes(const Problem& problem, bool backward) {
  cpu::Arena arena(nullptr);
  const cpu::Slot slot(problem, backward, arena);
  const Cost cost = linear_cost(problem);
  const double heads = static_cast<double>(std::max<Index>(cpu::head_count(problem), 1));
  const double tensors = (backward ? cost.backward_bytes : cost.forward_bytes) / heads;
  return static_cast<double>(arena.bytes()) + tensors;
}

struct Schedule {
  Schedule(const Problem& problem, int thread_count, bool backward)
      : threads(thread_count), heads(cpu::head_count(problem)), alone(0) {
    if (threads > 1 && head_bytes(problem, backward) <= kSharedHeadBytes) {
      alone = heads / threads * threads;
    }
    if (threads == 1) alone = heads;
    slots = std::min<Index>(threads, std::max<Index>(alone, 1));
    if (threads > 1) wave = std::clamp<Index>(alone, 1, kHeadsAtOnce * threads);
  }
  Index threads, heads, alone, slots, wave = 1;
};

struct Memory {
  Memory(const Problem& problem, bool backward, const Schedule& schedule, void* data) {
    cpu::Arena arena(data);
    for (Index i = 0; i < schedule.slots; ++i) slots.emplace_back(problem, backward, arena);
    for (Index i = 0; i < schedule.threads; ++i) scratch.emplace_back(problem, backward, arena);
    const Index shares = problem.layout.mixing_size() * problem.keys().mixing_size();
    if (backward) d_mixing = arena.floats(schedule.wave * shares);
    bytes = arena.bytes();
  }
  float* d_mixing = nullptr;
  std::vector<cpu::Slot> slots;
  std::vector<cpu::Scratch> scratch;
  std::size_t bytes = 0;
};

std::size_t workspace_bytes(const Problem& problem, int threads, bool backward) {
  return Memory(problem, backward, Schedule(problem, threads, backward), nullptr).bytes;
}

// The setting of OpenMP may have changed since the plan was made; its workspace has not.
Schedule schedule_within(const PlanData& plan, bool backward) {
  int threads = cpu::thread_count(plan.options.threads);
  const std::size_t bytes = backward ? plan.backward_workspace : plan.forward_workspace;
  while (threads > 1 && workspace_bytes(plan.problem, threads, backward) > bytes) --threads;
  return Schedule(plan.problem, threads, backward);
}

std::optional<std::string> refuses(const Problem& problem) {
  if (problem.device.kind != Device::Kind::cpu) {
    return "runs on the CPU, the problem is on " + to_string(problem.device);
  }
  if (problem.dtype == DType::f64) return "has no f64 kernels";
  constexpr Index kWidest = 8192;
  if (std::max(problem.dk, problem.dv) > kWidest) return "serves dk and dv up to 8192";
  return std::nullopt;
}

double predict_seconds(const Problem& problem, const PlanOptions& options) {
  const double rate = cpu::kernels().rate * cpu::thread_count(options.threads);
  return linear_cost(problem).forward_flops / rate;
}

std::size_t forward_bytes(const Problem& problem, const PlanOptions& options) {
  return workspace_bytes(problem, cpu::thread_count(options.threads), false);
}

std::size_t backward_bytes(const Problem& problem, const PlanOptions& options) {
  return workspace_bytes(problem, cpu::thread_count(options.threads), true);
}

template <typename Call>
void run(const Call& call, int threads, void (*kernel)(const Call&, cpu::Team&)) {
  const std::pair<const Call&, decltype(kernel)> context{call, kernel};
  cpu::Team::run(
      threads,
      [](void* data, cpu::Team& team) {
        const auto& [shared, function] = *static_cast<decltype(context)*>(data);
        function(shared, team);
      },
      const_cast<void*>(static_cast<const void*>(&context)));
}

void run_forward(const PlanData& plan, const ForwardInputs& in, const ForwardOutputs& out,
                 const Workspace& workspace, Stream) {
  const Schedule s = schedule_within(plan, false);
  const Memory memory(plan.problem, false, s, workspace.data);
  const cpu::ForwardCall call{plan.problem, in,           out,           s.heads,
                              s.alone,      memory.slots, memory.scratch};
  run(call, static_cast<int>(s.threads), cpu::kernels().forward);
}

void run_backward(const PlanData& plan, const BackwardInputs& in, const BackwardOutputs& out,
                  const Workspace& workspace, Stream) {
  const Schedule s = schedule_within(plan, true);
  const Memory memory(plan.problem, true, s, workspace.data);
  const cpu::BackwardCall call{
      plan.problem,    in,    out, s.heads, s.alone, memory.slots, memory.scratch,
      memory.d_mixing, s.wave};
  run(call, static_cast<int>(s.threads), cpu::kernels().backward);
}

constexpr Implementation kLinear{.name = "cpu.linear",
                                 .refuses = refuses,
                                 .predict_seconds = predict_seconds,
                                 .forward_workspace = forward_bytes,
                                 .backward_workspace = backward_bytes,
                                 .forward = run_forward,
                                 .backward = run_backward};

}  // namespace

std::vector<const Implementation*> cpu_implementations() { return {&kLinear}; }

}  // namespace mhla
