// How layers with learned time steps (gated DeltaNet, Mamba2) start.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/rand.h>

#include <cmath>
#include <cstdint>

namespace mhla::nn {

// log A [H], A uniform in [low, 16)
inline at::Tensor initial_decay_log(std::int64_t heads, double low) {
  return at::empty({heads}).uniform_(low, 16.0).log();
}

// [H]; softplus of it is log-uniform in [0.001, 0.1]
inline at::Tensor initial_step_bias(std::int64_t heads) {
  const double low = std::log(0.001), high = std::log(0.1);
  const at::Tensor step = at::rand({heads}).mul(high - low).add(low).exp().clamp_min(1e-4);
  return step.add(at::expm1(step.neg()).neg().log());
}

}  // namespace mhla::nn
