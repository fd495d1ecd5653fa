// The streaming form for LibTorch: a state that scripts can hold, copy, pickle and save.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <optional>
#include <string>

#include "mhla/state.h"

namespace mhla::nn {

class StreamState : public torch::CustomClassHolder {
 public:
  // problem: words of parse_problem, such as `sequence=64 block=64 batch=2 heads=4 dk=128
  // mask=causal normalizer=none`; mixing [M, M] or [H, M, M], where M blocks can be read.
  StreamState(const std::string& problem, const at::Tensor& mixing);
  explicit StreamState(State state) : state_(std::move(state)) {}

  // q, k [B, T, H, dk], v [B, T, H, dv] -> o [B, T, H, dv]; the state has read T tokens more.
  at::Tensor read(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& q_den, const std::optional<at::Tensor>& k_den);

  State& get() { return state_; }

 private:
  State state_;
};

}  // namespace mhla::nn
