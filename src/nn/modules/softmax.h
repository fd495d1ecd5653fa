// Softmax attention as it stands in DeiT and DiT, in Wan and in Transformer++.
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct SoftmaxConfig {
  std::int64_t dim = 0, heads = 0;
  std::string task = "classification";  // classification, dit, video, language, vlt
  std::vector<std::int64_t> grid;       // video: frames, height, width; vlt: height, width
  bool qkv_bias = true;                 // classification and dit

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("task", task);
    visit("grid", grid);
    visit("qkv_bias", qkv_bias);
  }
};

// classification, dit: `qkv` and `proj`, timm's names
class SoftmaxAttention : public Attention {
 public:
  using Config = SoftmaxConfig;
  explicit SoftmaxAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  std::int64_t heads_;
  Linear qkv_, proj_;
};

// video: RMSNorm over the full width of q and k, 3-D rotary; Wan's names
class VideoSoftmaxAttention : public Attention {
 public:
  using Config = SoftmaxConfig;
  explicit VideoSoftmaxAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override;
  void set_grid(const std::vector<std::int64_t>& grid) override { grid_ = grid; }

 private:
  std::int64_t heads_;
  std::vector<std::int64_t> grid_;
  Linear q_, k_, v_, o_;
  RmsNorm norm_q_, norm_k_;
};

// language: causal, rotary, no bias; flash-linear-attention's names. The state is [k, v].
class CausalSoftmaxAttention : public Attention {
 public:
  using Config = SoftmaxConfig;
  explicit CausalSoftmaxAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override { return step(x, {}).first; }
  std::pair<at::Tensor, AttentionState> step(const at::Tensor& x,
                                             const AttentionState& state) override;

 private:
  std::int64_t heads_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
};

}  // namespace mhla::nn
