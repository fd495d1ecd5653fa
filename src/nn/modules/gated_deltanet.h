// Gated DeltaNet: short convolutions, unit queries and keys, the gated delta rule, head norm and
// gate.
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct GatedDeltaNetConfig {
  std::int64_t dim = 0, heads = 0;
  std::int64_t head_dim = 0;  // of q and k; 0: so that all heads together are 3/4 of dim
  double expand_v = 2.0;      // width of v over that of k
  std::int64_t conv_size = 4;
  double norm_eps = 1e-6;
  std::int64_t chunk = 64;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("head_dim", head_dim);
    visit("expand_v", expand_v);
    visit("conv_size", conv_size);
    visit("norm_eps", norm_eps);
    visit("chunk", chunk);
  }
};

// The state is the inputs that each convolution still needs, then S.
class GatedDeltaNet : public Attention {
 public:
  using Config = GatedDeltaNetConfig;
  explicit GatedDeltaNet(const Config& config);
  at::Tensor forward(const at::Tensor& x) override { return step(x, {}).first; }
  std::pair<at::Tensor, AttentionState> step(const at::Tensor& x,
                                             const AttentionState& state) override;

 private:
  Config config_;
  Linear q_proj_, k_proj_, v_proj_, a_proj_, b_proj_;
  at::Tensor A_log_, dt_bias_;  // [H]
  Conv1d q_conv1d_, k_conv1d_, v_conv1d_;
  Linear g_proj_;
  RmsNorm o_norm_;
  Linear o_proj_;
};

}  // namespace mhla::nn
