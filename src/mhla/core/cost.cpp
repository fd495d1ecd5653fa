// Counting multiply-adds and bytes.
#include "mhla/core/cost.h"

#include <algorithm>

namespace mhla {

Cost linear_cost(const Problem& problem) {
  const double heads = static_cast<double>(problem.batch) * static_cast<double>(problem.heads);
  const double dk = static_cast<double>(problem.dk), dv = static_cast<double>(problem.dv);
  const double nq = static_cast<double>(problem.layout.tokens());
  const double nk = static_cast<double>(problem.keys().tokens());

  double pairs = 0;  // weights of the mixing matrix that are read, over all sequences
  for (std::size_t s = 0; s < problem.layout.sequences().size(); ++s) {
    const double mq = static_cast<double>(problem.layout.sequences()[s].blocks);
    const double mk = static_cast<double>(problem.keys().sequences()[s].blocks);
    if (problem.mask == Mask::none) pairs += mq * mk;
    if (problem.mask == Mask::causal) pairs += mq * (mq - 1) / 2;
    if (problem.mask == Mask::block_causal) pairs += mq * (mq + 1) / 2;
  }
  double triangle = 0;  // scores inside causal blocks
  if (problem.mask == Mask::causal) {
    for (const Block& block : problem.layout.blocks()) {
      const double n = static_cast<double>(block.tokens());
      triangle += n * (n + 1) / 2;
    }
  }
  const bool normalized = problem.normalizer != Normalizer::none;
  const double width = dv + (normalized ? 1 : 0);  // the normaliser is one more column of v

  Cost cost;
  const double forward_macs = (nq + nk + pairs) * dk * width + triangle * (dk + width);
  // Summaries and their mixture again; gradients of both products of each, and of the weights.
  const double backward_macs = (nk + pairs) * dk * width +
                               (2 * nq + 2 * nk + 2 * pairs) * dk * width +
                               triangle * (3 * dk + 2 * width);
  cost.forward_flops = 2 * heads * forward_macs;
  cost.backward_flops = 2 * heads * backward_macs;

  const double element = static_cast<double>(size_of(problem.dtype));
  const double qk_den = problem.separate_denominator ? (nq + nk) * dk : 0;
  const double inputs = (nq + nk) * dk + nk * dv + qk_den;
  cost.forward_bytes = heads * element * (inputs + nq * dv);
  cost.backward_bytes = heads * element * (2 * inputs + 2 * nq * dv);
  return cost;
}

}  // namespace mhla
