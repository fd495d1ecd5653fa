// The meaning of a problem: names, defaults and the combinations that are refused.
#include "mhla/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/core/arithmetic.h"
#include "mhla/error.h"

namespace mhla {

const char* name(Mask mask) {
  switch (mask) {
    case Mask::none: return "none";
    case Mask::causal: return "causal";
    case Mask::block_causal: return "block_causal";
  }
  return "unknown";
}

const char* name(Normalizer normalizer) {
  switch (normalizer) {
    case Normalizer::exact: return "exact";
    case Normalizer::shared_position: return "shared_position";
    case Normalizer::none: return "none";
  }
  return "unknown";
}

const char* name(FeatureMap map) {
  switch (map) {
    case FeatureMap::relu_eps: return "relu_eps";
    case FeatureMap::relu: return "relu";
    case FeatureMap::elu1: return "elu1";
    case FeatureMap::identity: return "identity";
  }
  return "unknown";
}

double Problem::denominator_eps() const {
  if (eps) return *eps;
  return normalizer == Normalizer::shared_position ? 1e-6 : 0.0;
}

namespace {

// Sums of all types but f64 are f32, where such a number would turn into infinity or zero.
void check_f32_range(const Problem& problem) {
  if (problem.dtype == DType::f64) return;
  const auto fits = [](double x) {
    return x == 0 || (std::abs(x) <= std::numeric_limits<float>::max() &&
                      std::abs(x) >= std::numeric_limits<float>::min());
  };
  if (!fits(problem.scale)) {
    fail("problem", "scale: ", problem.scale, " is outside the range of f32, in which ",
         name(problem.dtype), " is summed");
  }
  if (!fits(problem.denominator_eps())) {
    fail("problem", "eps: ", problem.denominator_eps(), " is outside the range of f32, in which ",
         name(problem.dtype), " is summed");
  }
}

void check_numbers(const Problem& problem) {
  const auto at_least = [](const char* what, std::int64_t value, std::int64_t least) {
    if (value < least) fail("problem", what, ": at least ", least, ", got ", value);
  };
  at_least("batch", problem.batch, 0);
  at_least("heads", problem.heads, 1);
  at_least("dk", problem.dk, 1);
  at_least("dv", problem.dv, 1);
  at_least("device", problem.device.index, 0);
  if (!std::isfinite(problem.scale)) fail("problem", "scale: must be finite, got ", problem.scale);
  const double eps = problem.denominator_eps();
  if (!std::isfinite(eps) || eps < 0) fail("problem", "eps: must be finite and >= 0, got ", eps);
  check_f32_range(problem);

  // Elements of the largest tensors and of all summaries must be countable.
  const std::int64_t rows = checked_mul("problem", problem.batch, problem.heads);
  const std::int64_t width = std::max(problem.dk, problem.dv);
  for (const BlockLayout* layout : {&problem.layout, &problem.keys()}) {
    const std::int64_t tokens = checked_mul("problem", rows, layout->tokens());
    checked_mul("problem", checked_mul("problem", tokens, width), 8);
    const std::int64_t summaries = checked_mul("problem", rows,
                                               static_cast<std::int64_t>(layout->blocks().size()));
    const std::int64_t entries = checked_mul("problem", summaries,
                                             checked_mul("problem", problem.dk, problem.dv));
    checked_mul("problem", entries, 64);
  }
}

void check_enumerations(const Problem& problem) {
  const auto in_range = [](const char* what, int value, int count) {
    if (value < 0 || value >= count) fail("problem", what, ": unknown value ", value);
  };
  in_range("mask", static_cast<int>(problem.mask), 3);
  in_range("normalizer", static_cast<int>(problem.normalizer), 3);
  in_range("feature_map", static_cast<int>(problem.feature_map), 4);
  in_range("dtype", static_cast<int>(problem.dtype), 4);
  in_range("device", static_cast<int>(problem.device.kind), 2);
}

void check_combination(const Problem& problem) {
  const bool same_layout = problem.layout == problem.keys();
  if (!same_layout && problem.mask != Mask::none) {
    fail("problem", "mask ", name(problem.mask),
         " orders queries and keys of one sequence; with different layouts (",
         problem.layout.to_string(), " and ", problem.keys().to_string(), ") use mask none");
  }
  if (!same_layout && problem.normalizer == Normalizer::shared_position) {
    fail("problem", "normalizer shared_position pairs tokens at the same position of every block, ",
         "which needs one layout for q and k, got ", problem.layout.to_string(), " and ",
         problem.keys().to_string());
  }
  if (problem.layout.sequences().size() != problem.keys().sequences().size()) {
    fail("problem", "layout_k: expected ", problem.layout.sequences().size(),
         " packed sequences as in layout, got ", problem.keys().sequences().size());
  }
  if (problem.separate_denominator && problem.normalizer == Normalizer::none) {
    fail("problem", "separate_denominator: normalizer none has no denominator");
  }
}

}  // namespace

void check(const Problem& problem) {
  check_enumerations(problem);
  check_combination(problem);
  check_numbers(problem);
}

}  // namespace mhla
