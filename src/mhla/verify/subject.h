// What is put on trial: an implementation of the operator, as its callers reach it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mhla/mhla.h"

namespace mhla::verify {

struct Subject {
  std::string name;
  Device device;
  // Throws Error(unsupported) for a problem it does not serve.
  std::function<Plan(const Problem&)> plan;
  std::function<void(const Plan&, const ForwardInputs&, const ForwardOutputs&, const Workspace&)>
      forward;
  std::function<void(const Plan&, const BackwardInputs&, const BackwardOutputs&, const Workspace&)>
      backward;         // none: only the forward is tried
  double roundoff = 0;  // of its products, where it is not that of the dtype
};

// One compiled implementation, by name, with so many threads for a case.
Subject subject(const std::string& implementation, int threads = 1);
// The same as often as it is tried: with one thread and, on a CPU, with several.
std::vector<Subject> subjects(const std::string& implementation);
// Every compiled implementation whose device is present.
std::vector<Subject> subjects();

}  // namespace mhla::verify
