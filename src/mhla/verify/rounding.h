// Storage types as numbers: what a value becomes when it is kept in a dtype. Independent of the
// library's own conversions, so that a defect there is seen.
#pragma once

#include "mhla/tensor_view.h"

namespace mhla::verify {

// Largest relative error of rounding to nearest: half an ulp.
double unit_roundoff(DType dtype);

// To the nearest number of the dtype, ties to even.
double round_to(DType dtype, double value);

// `value` must be representable (round_to was applied).
void store(DType dtype, double value, void* to);
double load(DType dtype, const void* from);

}  // namespace mhla::verify
