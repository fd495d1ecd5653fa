// Choosing the implementation that serves a problem at the lowest predicted time.
#include "mhla/plan.h"

#include <algorithm>
#include <cstdio>

#include "mhla/core/cost.h"
#include "mhla/core/implementation.h"
#include "mhla/core/text.h"

namespace mhla {
namespace {

// More than any machine has; workspaces grow with it.
constexpr int kMaxThreads = 1024;

const std::vector<const Implementation*>& registry() {
  static const std::vector<const Implementation*> all = [] {
    std::vector<const Implementation*> list = cuda_implementations();
    for (const auto* entry : cpu_implementations()) list.push_back(entry);
    for (const auto* entry : reference_implementations()) list.push_back(entry);
    return list;
  }();
  return all;
}

void check_known(const std::string& wanted) {
  if (wanted.empty()) return;
  for (const auto* entry : registry()) {
    if (wanted == entry->name) return;
  }
  const std::string hint = nearest(wanted, implementations());
  std::string list;
  for (const auto& known : implementations()) list += (list.empty() ? "" : ", ") + known;
  fail("plan", "implementation: unknown '", wanted, "'",
       hint.empty() ? "" : "; did you mean '" + hint + "'?", " (compiled: ", list, ")");
}

// What the device of a problem lacks in this build, if anything.
const char* absence(const Problem& problem) {
  return problem.device.kind == Device::Kind::cuda ? cuda_absence() : cpu_absence();
}

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return text("%.1f us", seconds * 1e6);
  if (seconds < 1.0) return text("%.2f ms", seconds * 1e3);
  return text("%.2f s", seconds);
}

}  // namespace

std::vector<std::string> implementations() {
  std::vector<std::string> names;
  for (const auto* entry : registry()) names.emplace_back(entry->name);
  return names;
}

Plan plan(const Problem& problem, const PlanOptions& options) {
  check(problem);
  check_known(options.implementation);
  if (options.threads < 0 || options.threads > kMaxThreads) {
    fail("plan", "threads: expected 0 to ", kMaxThreads, ", got ", options.threads);
  }

  auto data = std::make_shared<PlanData>(PlanData{.problem = problem, .options = options});
  std::size_t best = 0;
  for (const auto* entry : registry()) {
    Candidate candidate{.implementation = entry->name};
    if (!options.implementation.empty() && options.implementation != entry->name) {
      candidate.reason = "another implementation was asked for by name";
    } else if (const auto refusal = entry->refuses(problem)) {
      candidate.reason = *refusal;
    } else if (entry->only_by_name && options.implementation.empty()) {
      candidate.reason = entry->only_by_name;
    } else {
      candidate.predicted_seconds = entry->predict_seconds(problem, options);
      candidate.reason = "serves this problem";
      if (!data->implementation ||
          candidate.predicted_seconds < data->candidates[best].predicted_seconds) {
        data->implementation = entry;
        best = data->candidates.size();
      }
    }
    data->candidates.push_back(candidate);
  }
  if (!data->implementation) {
    std::string reasons;
    for (const auto& candidate : data->candidates) {
      reasons += "; " + candidate.implementation + ": " + candidate.reason;
    }
    if (const char* missing = absence(problem)) reasons += std::string("; ") + missing;
    fail(ErrorCode::unsupported, "plan", "nothing serves ", problem.to_string(), reasons);
  }
  data->candidates[best].chosen = true;
  data->cost = linear_cost(problem);
  data->forward_workspace = data->implementation->forward_workspace(problem, options);
  data->backward_workspace = data->implementation->backward_workspace(problem, options);
  if (data->implementation->prepare) data->prepared = data->implementation->prepare(problem);
  return Plan(std::move(data));
}

const Problem& Plan::problem() const { return data_->problem; }
std::string Plan::implementation() const { return data_->implementation->name; }
std::size_t Plan::forward_workspace() const { return data_->forward_workspace; }
std::size_t Plan::backward_workspace() const { return data_->backward_workspace; }
const Cost& Plan::cost() const { return data_->cost; }
const std::vector<Candidate>& Plan::candidates() const { return data_->candidates; }

bool Plan::adds_local(const std::array<std::int64_t, 3>& kernel) const {
  const BlockLayout& layout = problem().layout;
  if (data_->implementation->adds_local == nullptr || problem().layout_k || layout.axes() < 2 ||
      layout.sequences().size() != 1) {
    return false;
  }
  const int front = 3 - layout.axes();
  for (int axis = 0; axis < 3; ++axis) {
    if (kernel[axis] < 1 || kernel[axis] % 2 == 0) return false;
    if (axis < front && kernel[axis] != 1) return false;
  }
  return data_->implementation->adds_local(problem(), kernel);
}

bool Plan::reads_narrow_mixing(const ForwardInputs& inputs, const ForwardOutputs& outputs) const {
  const auto reads = data_->implementation->reads_narrow_mixing;
  return reads != nullptr && reads(*data_, inputs, outputs);
}

std::string Plan::explain() const {
  const Problem& p = problem();
  std::string out = "problem    " + p.to_string() + "\n";
  const auto blocks = [](const BlockLayout& layout) {
    return std::to_string(layout.tokens()) + " tokens in " +
           std::to_string(layout.blocks().size()) + " blocks of at most " +
           std::to_string(layout.max_block_tokens());
  };
  out += "layout     " + blocks(p.layout);
  if (p.layout_k) out += "; keys: " + blocks(*p.layout_k);
  if (p.layout.sequences().size() > 1) {
    out += "; " + std::to_string(p.layout.sequences().size()) + " packed sequences";
  }
  out += "\nmixing     " + std::string(p.mixing_per_head ? "per head, " : "") +
         std::to_string(p.layout.mixing_size()) + " x " + std::to_string(p.keys().mixing_size());
  out += "\nforward    " + text("%.4g GFLOP, ", cost().forward_flops * 1e-9) +
         text("%.4g MB", cost().forward_bytes * 1e-6) + " at least, workspace " +
         text("%.4g MB", static_cast<double>(forward_workspace()) * 1e-6);
  out += "\nbackward   " + text("%.4g GFLOP, ", cost().backward_flops * 1e-9) +
         text("%.4g MB", cost().backward_bytes * 1e-6) + " at least, workspace " +
         text("%.4g MB", static_cast<double>(backward_workspace()) * 1e-6);
  out += "\nchosen     " + implementation();
  if (data_->implementation->kernels) out += ": " + data_->implementation->kernels(p);
  out += "\n";
  for (const Candidate& candidate : candidates()) {
    out += std::string(candidate.chosen ? "  * " : "    ") + candidate.implementation + ": " +
           candidate.reason;
    if (candidate.predicted_seconds > 0) {
      out += ", predicted " + seconds_text(candidate.predicted_seconds) + " forward";
    }
    out += "\n";
  }
  if (const char* missing = absence(p)) out += std::string("    ") + missing + "\n";
  return out;
}

}  // namespace mhla
