// What every backend provides to the planner: a row of functions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mhla/mhla.h"

namespace mhla {

struct PlanData {
  Problem problem;
  PlanOptions options;
  const Implementation* implementation = nullptr;
  std::size_t forward_workspace = 0;
  std::size_t backward_workspace = 0;
  Cost cost = {};
  std::vector<Candidate> candidates = {};
  std::shared_ptr<const void> prepared =
      {};  // what Implementation::prepare made, device tables for example
};

// Views were checked against the problem before forward and backward are called.
struct Implementation {
  const char* name;  // "reference", "cpu.linear", "cuda.dense"
  // Empty when the implementation serves the problem, otherwise the reason why not.
  std::optional<std::string> (*refuses)(const Problem& problem);
  double (*predict_seconds)(const Problem& problem, const PlanOptions& options);  // one forward
  std::size_t (*forward_workspace)(const Problem& problem, const PlanOptions& options);
  std::size_t (*backward_workspace)(const Problem& problem, const PlanOptions& options);
  void (*forward)(const PlanData& plan, const ForwardInputs& inputs, const ForwardOutputs& outputs,
                  const Workspace& workspace, Stream stream);
  void (*backward)(const PlanData& plan, const BackwardInputs& inputs,
                   const BackwardOutputs& outputs, const Workspace& workspace, Stream stream);
  // Optional work done once per plan; the result lives as long as the plan.
  std::shared_ptr<const void> (*prepare)(const Problem& problem) = nullptr;
  // Optional: which of its kernels serve the problem, for Plan::explain.
  std::string (*kernels)(const Problem& problem) = nullptr;
  // Optional: Plan::adds_local of a grid on which q and k are the same tokens.
  bool (*adds_local)(const Problem& problem, const std::array<std::int64_t, 3>& kernel) = nullptr;
  // Optional: Plan::reads_narrow_mixing.
  bool (*reads_narrow_mixing)(const PlanData& plan, const ForwardInputs& inputs,
                              const ForwardOutputs& outputs) = nullptr;
  // Why the planner never chooses it unasked; null: it may.
  const char* only_by_name = nullptr;
};

// Each backend lists what was compiled in; an absent backend is a stub file with an empty list.
std::vector<const Implementation*> reference_implementations();
std::vector<const Implementation*> cpu_implementations();
std::vector<const Implementation*> cuda_implementations();
// How to get an absent one; null where it is compiled in.
const char* cpu_absence();
const char* cuda_absence();

}  // namespace mhla
