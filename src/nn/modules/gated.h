// Language layers that share a shape: q, k, v, a causal recurrence, RMSNorm over each head times
// SiLU of a gate, output projection. Names of flash-linear-attention.
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct GatedConfig {
  std::int64_t dim = 0, heads = 0;
  double expand_k = 0.0, expand_v = 0.0;  // widths of k and v over dim; 0: the layer's own
  double norm_eps = 1e-6;
  std::int64_t chunk = 64;
  std::int64_t gate_rank = 16;    // GLA: its decay comes from a projection of this rank
  double gate_normalizer = 16.0;  // GLA and simple GLA: log decay = logsigmoid(.) / this

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("expand_k", expand_k);
    visit("expand_v", expand_v);
    visit("norm_eps", norm_eps);
    visit("chunk", chunk);
    visit("gate_rank", gate_rank);
    visit("gate_normalizer", gate_normalizer);
  }
};

// What the recurrence sees: q, k, v [B, N, H, D], the layer's input, and the state.
struct GatedInputs {
  at::Tensor q, k, v, x;
  const AttentionState& state;
};

class GatedAttention : public Attention {
 public:
  using Config = GatedConfig;
  at::Tensor forward(const at::Tensor& x) override { return step(x, {}).first; }
  std::pair<at::Tensor, AttentionState> step(const at::Tensor& x,
                                             const AttentionState& state) override;

 protected:
  // expand_k and expand_v are those of the layer, where the config has none.
  GatedAttention(const Config& config, double expand_k, double expand_v);
  virtual std::pair<at::Tensor, AttentionState> recur(const GatedInputs& inputs) = 0;

  std::int64_t dim_k() const { return dim_k_; }
  const Config& config() const { return config_; }

 private:
  Config config_;
  std::int64_t dim_k_, dim_v_;
  Linear q_proj_, k_proj_, v_proj_, g_proj_, o_proj_;
  RmsNorm g_norm_;
};

// ReLU, then rotary, as MHLA's language layer; the state is [S, position].
class CausalLinearAttention : public GatedAttention {
 public:
  explicit CausalLinearAttention(const Config& config) : GatedAttention(config, 0.5, 1.0) {}

 protected:
  std::pair<at::Tensor, AttentionState> recur(const GatedInputs& inputs) override;
};

// RetNet; the state is [S, position].
class Retention : public GatedAttention {
 public:
  explicit Retention(const Config& config) : GatedAttention(config, 1.0, 2.0) {}

 protected:
  std::pair<at::Tensor, AttentionState> recur(const GatedInputs& inputs) override;
};

// Gated linear attention; the state is [S].
class GatedLinearAttention : public GatedAttention {
 public:
  explicit GatedLinearAttention(const Config& config);

 protected:
  std::pair<at::Tensor, AttentionState> recur(const GatedInputs& inputs) override;

 private:
  Linear gk_proj0_, gk_proj1_;
};

class SimpleGatedLinearAttention : public GatedAttention {
 public:
  explicit SimpleGatedLinearAttention(const Config& config);

 protected:
  std::pair<at::Tensor, AttentionState> recur(const GatedInputs& inputs) override;

 private:
  Linear gk_proj_;
};

}  // namespace mhla::nn
