// MHLA, and plain linear attention, in the VLT backbone: its projections, gate, 5x5 convolution and
// 2-D rotary stay (spec 2.2).
#pragma once

#include "models/attention.h"
#include "nn/modules/layers.h"

namespace mhla::models {

// Tensor names of RALA's release, and `piece_attn.conv.weight` for the mixing matrix.
class GridAttention : public nn::Attention, public Mixed {
 public:
  // name: mhla or linear. options: init=, normalizer=, feature_map=, blocks=
  GridAttention(const std::string& name, const Place& place, const std::string& options);
  at::Tensor forward(const at::Tensor& x) override;  // [B, height * width, C]
  void set_grid(const std::vector<std::int64_t>& grid) override;

  void constrain() override;
  at::Tensor& mixing() override { return mixing_; }
  BlockLayout layout() const override { return made_for_; }
  bool causal() const override { return false; }

 private:
  at::Tensor matrix();  // [M, M] for the grid of the moment

  std::int64_t heads_;
  std::vector<std::int64_t> blocks_;
  nn::Layout layout_;
  BlockLayout made_for_;
  Normalizer normalizer_ = Normalizer::exact;
  FeatureMap feature_map_ = FeatureMap::relu_eps;
  nn::Conv2d qkvo_, lepe_, proj_;
  at::Tensor mixing_;  // [M, M, 1, 1]; linear: one block, the constant 1, not trained
};

}  // namespace mhla::models
