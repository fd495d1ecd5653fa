// Predicted times of both forms, by which plan() chooses.
#include "mhla/cpu/planning.h"

#include <algorithm>
#include <string_view>

#include "mhla/core/cost.h"
#include "mhla/cpu/kernels.h"

namespace mhla::cpu {

std::optional<std::string> refuses_any(const Problem& problem) {
  if (problem.device.kind != Device::Kind::cpu) {
    return "runs on the CPU, the problem is on " + to_string(problem.device);
  }
  if (problem.dtype == DType::f64) return "has no f64 kernels";
  constexpr Index kWidest = 8192;
  if (std::max(problem.dk, problem.dv) > kWidest) return "serves dk and dv up to 8192";
  return std::nullopt;
}

// NOTE: measured on Zen 4 with `cpu_kernels forms` (docs/kernels/cpu.md), in flops at the rate of
// the linear form, so that slower instruction sets scale both alike.
namespace {

constexpr double kPairs = 0.55;  // products of pairs of bf16 take this part of their time in f32
constexpr double kLinearHead = 25e3;
constexpr double kLinearBlock = 5e3;
constexpr double kOpenBlock = 1750;     // per feature of q and v, of a block behind a causal mask
constexpr double kDenseProduct = 0.85;  // its products are longer than those of small blocks
constexpr double kDenseScore = 12;      // weighing a score
constexpr double kDensePairScore = 25;  // and rounding it
constexpr double kDenseWeight = 100;    // a query block's weights, by key
constexpr double kDenseToken = 6;       // packing, per feature of k and v
constexpr double kDenseHead = 15e3;

// Sets with dot products of bf16 are called so.
bool in_pairs(const Problem& problem) {
  return problem.dtype == DType::bf16 &&
         std::string_view(kernels().target).find("BF16") != std::string_view::npos;
}

double features(const Problem& problem) { return static_cast<double>(problem.dk + problem.dv); }

}  // namespace

double linear_seconds(const Problem& problem, const PlanOptions& options) {
  double flops = linear_cost(problem).forward_flops;
  const double heads = static_cast<double>(problem.batch * problem.heads);
  if (in_pairs(problem) && pairs_up(problem)) flops *= kPairs;
  const double open = problem.mask == Mask::causal ? kOpenBlock * features(problem) : 0;
  flops += heads * static_cast<double>(problem.layout.sequences().size()) * kLinearHead;
  flops += heads * static_cast<double>(problem.layout.blocks().size()) * (kLinearBlock + open);
  return flops / (kernels().rate * thread_count(options.threads));
}

double dense_seconds(const Problem& problem, const PlanOptions& options) {
  const bool pairs = in_pairs(problem), masked = problem.mask != Mask::none;
  const double score = 2 * features(problem) * kDenseProduct * (pairs ? kPairs : 1) +
                       (pairs ? kDensePairScore : kDenseScore);
  double flops = 0;
  for (std::size_t s = 0; s < problem.layout.sequences().size(); ++s) {
    const Sequence& query = problem.layout.sequences()[s];
    const double nq = static_cast<double>(query.tokens);
    const double nk = static_cast<double>(problem.keys().sequences()[s].tokens);
    // Rows of a tile see as many keys as the last of them, in whole panels.
    const double more = static_cast<double>(dense_rows(true) + 2 * kWidestLanes);
    const double seen = masked ? std::min(nk, (nk + more) / 2) : nk;
    flops += nq * seen * score + static_cast<double>(query.blocks) * seen * kDenseWeight +
             nk * features(problem) * kDenseToken + kDenseHead;
  }
  const Index threads = std::min<Index>(thread_count(options.threads), head_count(problem));
  return flops * static_cast<double>(problem.batch * problem.heads) /
         (kernels().rate * static_cast<double>(std::max<Index>(threads, 1)));
}

}  // namespace mhla::cpu
