// Mixing matrices for LibTorch: how they start, move to another layout and are kept in range.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "mhla/layout.h"
#include "mhla/mixing.h"

namespace mhla::nn {

// f32 [M, M]. how: locality, causal_locality, uniform, causal_uniform, authors:TRANSFORM, or a
// number for a constant matrix.
at::Tensor initial_mixing(const std::string& how, const BlockLayout& layout);
// Copies [M, M] or [H, M, M] of any device to the library's own matrix.
MixingMatrix matrix_of(const at::Tensor& mixing);
// In place: clamped, then rows optionally rescaled to sum to one.
void constrain_mixing_(at::Tensor mixing, double low, double high, bool renormalize_rows);

}  // namespace mhla::nn
