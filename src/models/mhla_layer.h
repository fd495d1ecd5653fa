// MHLA under the tensor names of each network's upstream.
#pragma once

#include "models/attention.h"

namespace mhla::models {

// What upstream calls the parts. Dots make nested modules.
struct MhlaNames {
  const char* qkv;        // one projection, where q is null
  const char *q, *k, *v;  // three projections
  const char *q_norm, *k_norm;
  const char* mixing;  // a parameter
  std::int64_t axes;   // of the mixing matrix, sizes of 1 at the end
  const char *gate, *out_norm, *out;

  static const MhlaNames& of(Task task);
};

class MhlaLayer : public nn::Attention, public Mixed {
 public:
  MhlaLayer(nn::MHLAConfig config, const MhlaNames& names);
  at::Tensor forward(const at::Tensor& x) override;
  std::optional<nn::functional::Norm> input_norm() const override { return layer_->input_norm(); }
  at::Tensor forward_normed(const at::Tensor& x) override;
  void set_grid(const std::vector<std::int64_t>& grid) override;
  // Causal layers: x [B, T, C] goes on where the stream ends (null: begins one). No gradients.
  at::Tensor read(const at::Tensor& x, c10::intrusive_ptr<nn::StreamState>& stream);

  void constrain() override;
  at::Tensor& mixing() override { return mixing_; }
  BlockLayout layout() const override;
  bool causal() const override { return config().mask != Mask::none; }
  const nn::MHLAConfig& config() const { return layer_->config; }

 private:
  at::Tensor matrix_for(std::int64_t tokens);  // [M, M] or [H, M, M]

  nn::MHLA layer_;
  nn::Layout made_for_;
  at::Tensor mixing_;  // in upstream's shape
};

}  // namespace mhla::models
