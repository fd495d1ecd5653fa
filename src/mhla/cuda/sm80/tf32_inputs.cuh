// f32 inputs through TF32: everything is kept in f32 and rounded to 11 bits where it is multiplied.
#pragma once

#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda {

template <>
struct SummaryOf<tf32> {
  using type = tf32;
};

}  // namespace mhla::cuda
