// Mixing matrices for LibTorch: how they start, move to another layout and are kept in range.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "mhla/layout.h"

namespace mhla::nn {

// f32 [M, M]. how: locality, causal_locality, uniform, causal_uniform, authors:TRANSFORM, or a
// number for a constant matrix.
at::Tensor initial_mixing(const std::string& how, const BlockLayout& layout);
// In place: clamped, then rows optionally rescaled to sum to one.
void constrain_mixing_(at::Tensor mixing, double low, double high, bool renormalize_rows);

}  // namespace mhla::nn
