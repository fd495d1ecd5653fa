// The dense form as an entry of the planner.
#include "mhla/cpu/dense.h"

#include <algorithm>
#include <utility>

#include "mhla/cpu/kernels.h"
#include "mhla/cpu/planning.h"

namespace mhla {
namespace cpu {
namespace {

Index longest(const BlockLayout& layout) {
  Index tokens = 0;
  for (const Sequence& sequence : layout.sequences()) tokens = std::max(tokens, sequence.tokens);
  return tokens;
}

Index row_major(Index rows, Index width) {
  return ((width + kChunk - 1) / kChunk * kTokens + rows - kTokens) * kRowStride;
}

}  // namespace

DenseRoom::DenseRoom(const Problem& problem, bool backward, Arena& arena) {
  const Geometry g(problem, kWidestLanes);
  const Index nq = longest(problem.layout), nk = std::max<Index>(longest(problem.keys()), 1);
  const Index columns = round_up(nk, kWidestLanes), rows_at_once = dense_rows(g.masked);
  const Index box = round_up(g.box[0] * g.box[1] * g.box[2], kWidestLanes);
  const auto optional = [&](bool wanted, Index count) {
    return wanted ? arena.floats(count) : nullptr;
  };
  query_at = arena.indices(nq), key_at = arena.indices(nk);
  query_block = arena.indices(nq);
  query_begin = arena.indices(g.mq + 1), key_begin = arena.indices(g.mk + 1);
  rows = arena.floats(
      row_major(std::min(kTokens, std::max(nq, nk)), std::max(problem.dk, problem.dv)));
  q = arena.floats(row_major(rows_at_once, problem.dk));
  keys_t = arena.floats(problem.dk * columns);
  values = optional(!backward, (nk + 1) * g.dv_padded);
  scores = arena.floats(row_major(rows_at_once, nk));
  weights = arena.floats(columns);
  factor = arena.floats(rows_at_once);
  result = arena.floats(std::max(rows_at_once * g.dv_padded, g.dk_padded));
  sums = optional(g.shared, g.mk * g.dk_padded);
  own = optional(g.shared, g.mk * box);
  keys = optional(backward, nk * g.dk_padded);
  values_t = optional(backward, problem.dv * columns);
  this->g = optional(backward, row_major(rows_at_once, problem.dv));
  q_panels = optional(backward, rows_at_once * g.dk_padded);
  g_panels = optional(backward, rows_at_once * g.dv_padded);
  d_scores = optional(backward, row_major(rows_at_once, nk));
  d_weights = optional(backward, columns);
  d_q = optional(backward, nq * g.dk_padded);
  d_k = optional(backward, nk * g.dk_padded);
  d_v = optional(backward, nk * g.dv_padded);
  d_den = optional(backward && g.shared, g.mq * box);
  d_own = optional(backward && g.shared, box);
  arena.floats(kAmxRows * kRowStride);  // matrix registers read behind the last rows
}

}  // namespace cpu

namespace {

using cpu::Index;

// Heads per thread between two barriers of the backward pass.
constexpr Index kHeadsAtOnce = 8;

struct Memory {
  Memory(const Problem& problem, bool backward, int threads, void* data)
      : heads(cpu::head_count(problem)), wave(std::min<Index>(heads, kHeadsAtOnce * threads)) {
    cpu::Arena arena(data);
    for (int i = 0; i < threads; ++i) rooms.emplace_back(problem, backward, arena);
    const Index share = problem.layout.mixing_size() * problem.keys().mixing_size();
    if (backward) d_mixing = arena.floats(wave * share);
    bytes = arena.bytes();
  }
  Index heads, wave;
  std::vector<cpu::DenseRoom> rooms;
  float* d_mixing = nullptr;
  std::size_t bytes = 0;
};

// A head is one thread's, so more threads than heads have nothing to do.
int threads_for(const Problem& problem, int wanted) {
  const Index heads = std::max<Index>(cpu::head_count(problem), 1);
  return static_cast<int>(std::min<Index>(cpu::thread_count(wanted), heads));
}

// The setting of OpenMP may have changed since the plan was made; its workspace has not.
int threads_within(const PlanData& plan, bool backward) {
  int threads = threads_for(plan.problem, plan.options.threads);
  const std::size_t bytes = backward ? plan.backward_workspace : plan.forward_workspace;
  while (threads > 1 && Memory(plan.problem, backward, threads, nullptr).bytes > bytes) --threads;
  return threads;
}

std::optional<std::string> refuses(const Problem& problem) {
  if (const auto reason = cpu::refuses_any(problem)) return reason;
  if (problem.separate_denominator) return "does not take separate denominators";
  for (const Sequence& sequence : problem.keys().sequences()) {
    if (sequence.tokens > cpu::kDenseTokens) {
      return "serves up to " + std::to_string(cpu::kDenseTokens) + " keys";
    }
  }
  return std::nullopt;
}

std::size_t forward_bytes(const Problem& problem, const PlanOptions& options) {
  return Memory(problem, false, threads_for(problem, options.threads), nullptr).bytes;
}
std::size_t backward_bytes(const Problem& problem, const PlanOptions& options) {
  return Memory(problem, true, threads_for(problem, options.threads), nullptr).bytes;
}

void run_forward(const PlanData& plan, const ForwardInputs& in, const ForwardOutputs& out,
                 const Workspace& workspace, Stream) {
  const int threads = threads_within(plan, false);
  const Memory memory(plan.problem, false, threads, workspace.data);
  const cpu::DenseForwardCall call{plan.problem, in, out, memory.heads, memory.rooms};
  cpu::run(call, threads, cpu::kernels().dense_forward);
}

void run_backward(const PlanData& plan, const BackwardInputs& in, const BackwardOutputs& out,
                  const Workspace& workspace, Stream) {
  const int threads = threads_within(plan, true);
  const Memory memory(plan.problem, true, threads, workspace.data);
  const cpu::DenseBackwardCall call{plan.problem,    in,         out, memory.heads, memory.rooms,
                                    memory.d_mixing, memory.wave};
  cpu::run(call, threads, cpu::kernels().dense_backward);
}

constexpr Implementation kDense{.name = "cpu.dense",
                                .refuses = refuses,
                                .predict_seconds = cpu::dense_seconds,
                                .forward_workspace = forward_bytes,
                                .backward_workspace = backward_bytes,
                                .forward = run_forward,
                                .backward = run_backward};

}  // namespace

const Implementation& cpu::dense_implementation() { return kDense; }

}  // namespace mhla
