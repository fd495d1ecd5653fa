// Linear attention without decay, in the places where the paper compares with it.
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct LinearConfig {
  std::int64_t dim = 0, heads = 0;
  std::string task = "classification";  // classification, dit, text_to_image, video, language
  std::vector<std::int64_t> grid;       // video: frames, height, width
  double expand_k = 0.5, expand_v = 1.0, norm_eps = 1e-6;  // language, see GatedConfig
  std::int64_t chunk = 64;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("task", task);
    visit("grid", grid);
    visit("expand_k", expand_k);
    visit("expand_v", expand_v);
    visit("norm_eps", norm_eps);
    visit("chunk", chunk);
  }
};

// classification (the authors' baseline): RMSNorm over the full width of q and k, no bias in
// `to_qkv`, output `to_out.0`. dit, text_to_image (Sana): `qkv` and `proj`, denominator + 1e-8.
class LinearAttention : public Attention {
 public:
  using Config = LinearConfig;
  explicit LinearAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  std::int64_t heads_;
  double eps_;
  Linear qkv_, out_;
  RmsNorm q_norm_, k_norm_;  // null without
};

// video: q, k, v, o and RMSNorm as Wan has them; rotary after ReLU, plain denominator
class VideoLinearAttention : public Attention {
 public:
  using Config = LinearConfig;
  explicit VideoLinearAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override;
  void set_grid(const std::vector<std::int64_t>& grid) override { grid_ = grid; }

 private:
  std::int64_t heads_;
  std::vector<std::int64_t> grid_;
  Linear q_, k_, v_, o_;
  RmsNorm norm_q_, norm_k_;
};

}  // namespace mhla::nn
