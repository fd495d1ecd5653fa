// The implementations of the CUDA backend, one function each.
#pragma once

#include "mhla/core/implementation.h"

namespace mhla::cuda {

const Implementation& linear_implementation();
const Implementation& tf32_implementation();  // the same for f32 inputs through TF32
const Implementation& causal_implementation();
const Implementation& columns_implementation();  // the same with another forward
const Implementation& dense_implementation();
const Implementation& fused_implementation();

}  // namespace mhla::cuda
