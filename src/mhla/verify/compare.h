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
  double roundoff = 0;        // of the computation's products, where it is not that of its dtype
};

// The element nearest to its tolerance, its error relative to the expected value; for 16-bit
// tensors the norm nearest to its tolerance, relative to the norm of the expected tensor.
struct Agreement {
  double error = 0;
  double tolerance = 0;
  double ratio = 0;  // error / tolerance; more than 1 fails
};

// f32, f64: element by element, |error| <= 2 u mass + u |value|. The running error analysis bounds
// one computation to first order, and two are compared: the oracle rounds as well. Where a result
// is stored more coarsely than it was computed (an f32 d_mixing of an f64 problem), that rounding
// is allowed on top and not counted as an error. bf16, f16: the largest and the root-mean-square
// error are at most twice those of the naive computation; where the naive one happens to be exact,
// 1 ulp of the largest magnitude and half an ulp of the root-mean-square magnitude. NaN and
// infinity never agree.
Agreement compare(const std::vector<double>& got, const Expected& expected);

}  // namespace mhla::verify
