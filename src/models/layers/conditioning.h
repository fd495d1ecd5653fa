// What diffusion models are told: the timestep, the class, and how both steer the layers.
#pragma once

#include "models/layers/basic.h"
#include "models/layers/position.h"

namespace mhla::models {

// Sinusoids, then `mlp.0`, SiLU, `mlp.2`.
class TimestepEmbedder : public torch::nn::Module {
 public:
  TimestepEmbedder(std::int64_t width, const TimestepOptions& options);
  at::Tensor forward(const at::Tensor& t) const;  // [B] -> [B, width]
  void reset(double std);

 private:
  TimestepOptions options_;
  Linear first_, second_;
};

// `embedding_table` with one row more than classes: the null class of guidance.
class LabelEmbedder : public torch::nn::Module {
 public:
  LabelEmbedder(std::int64_t classes, std::int64_t width, double dropout);
  at::Tensor forward(const at::Tensor& labels) const;  // [B] -> [B, width]
  void reset(double std);

 private:
  std::int64_t classes_;
  double dropout_;
  Table table_;
};

// SiLU, then a linear layer named `1`: shifts, scales and gates.
class Modulation : public torch::nn::Module {
 public:
  Modulation(std::int64_t width, std::int64_t vectors);
  at::Tensor forward(const at::Tensor& c) const;  // [B, width] -> [B, vectors * width]
  const Linear& linear() const { return linear_; }

 private:
  Linear linear_;
};

}  // namespace mhla::models
