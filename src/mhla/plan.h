// Which implementation serves a problem, what it costs and why it was chosen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mhla/problem.h"

namespace mhla {

struct Implementation;  // core/implementation.h
struct PlanData;
struct ForwardInputs;  // mhla.h
struct ForwardOutputs;

struct Cost {
  double forward_flops = 0;  // multiply and add counted apart
  double backward_flops = 0;
  double forward_bytes = 0;  // fewest: inputs read once, outputs written once
  double backward_bytes = 0;
};

struct Candidate {
  std::string implementation;  // "cuda.dense"
  bool chosen = false;
  double predicted_seconds = 0;  // of one forward; 0 when refused
  std::string reason = {};       // why refused, or how the prediction came about
};

struct PlanOptions {
  std::string implementation =
      {};           // force one by name; empty: the cheapest that supports the problem
  int threads = 0;  // CPU: 0 takes all cores
};

// Immutable, cheap to copy, reusable for any number of calls with the same problem.
class Plan {
 public:
  const Problem& problem() const;
  std::string implementation() const;
  std::size_t forward_workspace() const;   // bytes
  std::size_t backward_workspace() const;  // bytes
  const Cost& cost() const;
  const std::vector<Candidate>& candidates() const;
  // Whether forward takes a LocalTerm of this many tokens along each axis (1 in front for axes that
  // the grid lacks); where not, the caller adds it.
  bool adds_local(const std::array<std::int64_t, 3>& kernel) const;
  // Whether forward, with q, k, v and o as they lie in memory here, takes a mixing matrix of their
  // 16-bit type; the matrix itself is not looked at.
  bool reads_narrow_mixing(const ForwardInputs& inputs, const ForwardOutputs& outputs) const;
  std::string explain() const;  // for people
  const PlanData& data() const { return *data_; }

 private:
  friend Plan plan(const Problem& problem, const PlanOptions& options);
  explicit Plan(std::shared_ptr<const PlanData> data) : data_(std::move(data)) {}
  std::shared_ptr<const PlanData> data_;
};

// Throws Error when the problem has no meaning or nothing on its device supports it.
Plan plan(const Problem& problem, const PlanOptions& options = {});

// Names of all compiled implementations, fastest first.
std::vector<std::string> implementations();

}  // namespace mhla
