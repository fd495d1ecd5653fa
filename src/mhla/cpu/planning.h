// What the entries of the planner share: refusals, predicted times, starting threads.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "mhla/core/implementation.h"
#include "mhla/cpu/team.h"

namespace mhla::cpu {

const Implementation& dense_implementation();

// Why no kernel here serves the problem.
std::optional<std::string> refuses_any(const Problem& problem);

// Seconds of one forward pass.
double linear_seconds(const Problem& problem, const PlanOptions& options);
double dense_seconds(const Problem& problem, const PlanOptions& options);

template <typename Call>
void run(const Call& call, int threads, void (*kernel)(const Call&, Team&)) {
  const std::pair<const Call&, decltype(kernel)> context{call, kernel};
  Team::run(
      threads,
      [](void* data, Team& team) {
        const auto& [shared, function] = *static_cast<decltype(context)*>(data);
        function(shared, team);
      },
      const_cast<void*>(static_cast<const void*>(&context)));
}

}  // namespace mhla::cpu
