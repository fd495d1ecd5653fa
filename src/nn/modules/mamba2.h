// Mamba2: one projection, a short convolution, the SSD recurrence, gate and norm.
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct Mamba2Config {
  std::int64_t dim = 0;
  std::int64_t heads = 0;  // 0: heads of 64 channels
  std::int64_t expand = 2, state_size = 128, groups = 1, conv_size = 4;
  double norm_eps = 1e-5;
  std::int64_t chunk = 64;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("expand", expand);
    visit("state_size", state_size);
    visit("groups", groups);
    visit("conv_size", conv_size);
    visit("norm_eps", norm_eps);
    visit("chunk", chunk);
  }
};

// Names of the authors' Mamba2 and of transformers. The state is [convolution, h].
class Mamba2 : public Attention {
 public:
  using Config = Mamba2Config;
  explicit Mamba2(const Config& config);
  at::Tensor forward(const at::Tensor& x) override { return step(x, {}).first; }
  std::pair<at::Tensor, AttentionState> step(const at::Tensor& x,
                                             const AttentionState& state) override;

 private:
  Config config_;
  std::int64_t inner_;  // channels of all heads
  Linear in_proj_;      // -> z, x B C, dt
  Conv1d conv1d_;
  at::Tensor dt_bias_, A_log_, D_;  // [H]
  RmsNorm norm_;
  Linear out_proj_;
};

}  // namespace mhla::nn
