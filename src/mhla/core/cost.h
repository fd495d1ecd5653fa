// Arithmetic and traffic of a problem, counted from its sizes.
#pragma once

#include "mhla/plan.h"

namespace mhla {

// The linear form: summaries, mixing, read-out (spec 1.2), and the triangle inside causal blocks.
Cost linear_cost(const Problem& problem);

}  // namespace mhla
