// From the arguments of one call to a plan: made once per description, then found again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "mhla/mhla.h"

namespace mhla::nn {

// What a call says besides its tensors. `sizes` holds the tokens per axis of every sequence, one
// after another; empty means what `grid=` of the options says, or one sequence as long as q.
// `options` are words of parse_problem: `block=8x8 mask=causal`.
struct Description {
  at::IntArrayRef sizes, sizes_k;
  c10::string_view options;
};

// Inputs of one call; the last two are undefined unless the denominator is separate.
struct Tensors {
  const at::Tensor& q;       // [B, Nq, H, dk]
  const at::Tensor& k;       // [B, Nk, H, dk]
  const at::Tensor& v;       // [B, Nk, H, dv]
  const at::Tensor& mixing;  // [Mq, Mk] or [H, Mq, Mk]
  const at::Tensor& q_den;
  const at::Tensor& k_den;
};

// The whole call as text, which parse_problem reads.
std::string problem_text(const Tensors& tensors, const Description& description);

// Uses as many threads as LibTorch does.
Plan plan_of(const Tensors& tensors, const Description& description);

}  // namespace mhla::nn
