// The linear form as an entry of the planner.
#include <algorithm>

#include "mhla/core/cost.h"
#include "mhla/core/implementation.h"
#include "mhla/cpu/kernels.h"
#include "mhla/cpu/planning.h"

namespace mhla {
namespace {

using cpu::Index;

// Heads with more memory than this, summaries and tensors, are shared by all threads, which then
// need one set of summaries in their caches. Others go to single threads: that saves the barriers,
// and summaries do not travel between cores, which need not have a cache in common.
constexpr double kSharedHeadBytes = 24e6;

// Heads per thread between two barriers of the backward pass.
constexpr Index kHeadsAtOnce = 8;

bool is_shared(const Problem& problem, bool backward) {
  cpu::Arena arena(nullptr);
  const cpu::Slot slot(problem, backward, arena);
  const double summaries = static_cast<double>(arena.bytes());
  const Cost cost = linear_cost(problem);
  const double heads = static_cast<double>(std::max<Index>(cpu::head_count(problem), 1));
  const double tensors = (backward ? cost.backward_bytes : cost.forward_bytes) / heads;
  return summaries + tensors > kSharedHeadBytes;
}

struct Schedule {
  Schedule(const Problem& problem, int thread_count, bool backward)
      : threads(thread_count), heads(cpu::head_count(problem)), alone(0) {
    if (threads > 1 && !is_shared(problem, backward)) alone = heads / threads * threads;
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

std::size_t forward_bytes(const Problem& problem, const PlanOptions& options) {
  return workspace_bytes(problem, cpu::thread_count(options.threads), false);
}

std::size_t backward_bytes(const Problem& problem, const PlanOptions& options) {
  return workspace_bytes(problem, cpu::thread_count(options.threads), true);
}

void run_forward(const PlanData& plan, const ForwardInputs& in, const ForwardOutputs& out,
                 const Workspace& workspace, Stream) {
  const Schedule s = schedule_within(plan, false);
  const Memory memory(plan.problem, false, s, workspace.data);
  const cpu::ForwardCall call{plan.problem, in,           out,           s.heads,
                              s.alone,      memory.slots, memory.scratch};
  cpu::run(call, static_cast<int>(s.threads), cpu::kernels().forward);
}

void run_backward(const PlanData& plan, const BackwardInputs& in, const BackwardOutputs& out,
                  const Workspace& workspace, Stream) {
  const Schedule s = schedule_within(plan, true);
  const Memory memory(plan.problem, true, s, workspace.data);
  const cpu::BackwardCall call{
      plan.problem,    in,    out, s.heads, s.alone, memory.slots, memory.scratch,
      memory.d_mixing, s.wave};
  cpu::run(call, static_cast<int>(s.threads), cpu::kernels().backward);
}

constexpr Implementation kLinear{.name = "cpu.linear",
                                 .refuses = cpu::refuses_any,
                                 .predict_seconds = cpu::linear_seconds,
                                 .forward_workspace = forward_bytes,
                                 .backward_workspace = backward_bytes,
                                 .forward = run_forward,
                                 .backward = run_backward};

}  // namespace

std::vector<const Implementation*> cpu_implementations() {
  return {&kLinear, &cpu::dense_implementation()};
}
const char* cpu_absence() { return nullptr; }

}  // namespace mhla
