// The language model of 340 M parameters and its twins: GLA's skeleton around any causal layer.
#pragma once

#include "models/attention.h"
#include "models/layers/basic.h"
#include "models/layers/residual.h"
#include "models/model.h"
#include "models/options.h"

namespace mhla::models {

struct LmConfig {
  std::int64_t vocab = 32000, dim = 1024;
  std::int64_t depth = 0;         // 0: 24; Mamba2, which has no MLP, 48; gated DeltaNet 21
  std::int64_t heads = 0;         // 0: 4; softmax 16
  std::int64_t intermediate = 0;  // of the MLP; 0: 8/3 of dim, rounded up to 256
  std::string attention = "mhla";
  std::int64_t context = 2048, block = 64;  // MHLA: what its mixing matrix is made for
  std::string mlp = "auto";                 // false for Mamba2
  bool tied = true;                         // logits with the embedding's weights
  double eps = 1e-6;                        // of RMSNorm

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("vocab", vocab);
    visit("dim", dim);
    visit("depth", depth);
    visit("heads", heads);
    visit("intermediate", intermediate);
    visit("attention", attention);
    visit("context", context);
    visit("block", block);
    visit("mlp", mlp);
    visit("tied", tied);
    visit("eps", eps);
  }
};

// `gate_proj`, `up_proj`, `down_proj`
class SwiGlu : public torch::nn::Module {
 public:
  SwiGlu(std::int64_t width, std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  Linear gate_proj_, up_proj_, down_proj_;
};

// What a layer remembers: MHLA its stream, the others tensors.
struct LmLayerState {
  nn::AttentionState tensors;
  c10::intrusive_ptr<nn::StreamState> stream;
};
using LmState = std::vector<LmLayerState>;

class LmBlock : public torch::nn::Module {
 public:
  LmBlock(const LmConfig& config, const Place& place, const std::string& options, bool with_mlp);
  void forward(Residual& x);
  void step(Residual& x, LmLayerState& state);
  nn::Attention& attention() const { return *attn_; }

 private:
  void add_mlp(Residual& x) const;

  nn::RmsNorm attn_norm_, mlp_norm_;
  std::shared_ptr<nn::Attention> attn_;
  std::shared_ptr<SwiGlu> mlp_;  // null without
};

class Lm : public Model {
 public:
  Lm(const LmConfig& config, const std::string& attention_options);
  std::vector<std::string> input_names() const override { return {"ids"}; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) override;
  at::Tensor forward(const at::Tensor& ids);  // [B, N] -> logits [B, N, vocab]
  at::Tensor hidden(const at::Tensor& ids);   // [B, N] -> [B, N, dim], after the last norm
  at::Tensor logits(const at::Tensor& hidden) const;
  // Continues the sequences of the state (empty: begins them); logits of the new tokens.
  at::Tensor step(const at::Tensor& ids, LmState& state);
  std::vector<at::Tensor> example_inputs(std::int64_t batch) const override;
  CostSheet cost() const override;
  StateDict adopt(StateDict tensors, std::vector<std::string>& notes) const override;
  const LmConfig& config() const { return config_; }

 protected:
  std::vector<Naming> namings() const override;

 private:
  LmConfig config_;
  Place place_;
  bool with_mlp_;
  Table embeddings_;
  std::shared_ptr<Layers<LmBlock>> layers_;
  nn::RmsNorm norm_;
  Linear head_;  // null where tied
};

}  // namespace mhla::models
