// When a computed tensor counts as right.
#pragma once

#include <string>
#include <vector>

#include "mhla/tensor_view.h"

namespace mhla::verify {

struct Expected {
  const std::vector<double>& value;  // of the oracle
  const std::vector<double>& mass;   // its rounding mass
  // Of the naive computation in the same precision; null for f32 and f64.
  const std::vector<double>* naive = nullptr;
  DType dtype = DType::f32;   // the computation's
  DType stored = DType::f32;  // the tensor's: d_mixing has the mixing matrix' own dtype
};

// The worst element, or for 16-bit tensors the worst norm. Errors are relative to the largest
// magnitude of the expected tensor, so that they can be read beside an epsilon.
struct Agreement {
  double error = 0;
  double tolerance = 0;
  double ratio = 0;  // error / tolerance; more than 1 fails
};

// f32, f64: element by element, |error| <= 4 u mass + u_stored |value|. The running error analysis
// bounds one computation to first order; two computations are compared (the oracle rounds as well),
// and another factor of two covers what first order leaves out.
// bf16, f16: the largest and the root-mean-square error are at most twice those of the naive
// computation, or 2 ulp of the largest (rms) magnitude where the naive one happens to be exact.
// NaN and infinity never agree.
Agreement compare(const std::vector<double>& got, const Expected& expected);

}  // namespace mhla::verify
