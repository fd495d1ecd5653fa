// DeiT: stock with softmax, the authors' MHLA network, and the same with every baseline.
#pragma once

#include "models/attention.h"
#include "models/layers/basic.h"
#include "models/layers/residual.h"
#include "models/model.h"
#include "models/options.h"

namespace mhla::models {

struct VitConfig {
  std::int64_t dim = 192, depth = 12, heads = 3, patch = 16, channels = 3, classes = 1000;
  std::vector<std::int64_t> image_size{224};  // pixels
  double mlp_ratio = 4.0;
  std::string attention = "mhla";
  std::vector<std::int64_t> blocks{4, 4};  // of the mixing matrix
  // Zero pixels on each side; -1: what makes the grid a multiple of the blocks (224 px: 16).
  std::int64_t padding = -1;
  std::string class_token = "auto";  // true for softmax and InLine; else the mean of all tokens
  std::string norm = "auto";         // rms for linear attention (the authors' baseline), else layer
  double drop_path = 0.1;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("depth", depth);
    visit("heads", heads);
    visit("patch", patch);
    visit("channels", channels);
    visit("classes", classes);
    visit("image_size", image_size);
    visit("mlp_ratio", mlp_ratio);
    visit("attention", attention);
    visit("blocks", blocks);
    visit("padding", padding);
    visit("class_token", class_token);
    visit("norm", norm);
    visit("drop_path", drop_path);
  }
};

// LayerNorm or RMSNorm, both with eps 1e-6.
class VitNorm : public torch::nn::Module {
 public:
  VitNorm(std::int64_t width, bool rms);
  nn::functional::Norm norm() const;

 private:
  at::Tensor weight_, bias_;  // no bias: RMSNorm
};

class VitBlock : public torch::nn::Module {
 public:
  VitBlock(const VitConfig& config, const Place& place, const std::string& options, bool rms,
           double drop_path);
  void forward(Residual& x);  // [B, N, C]
  nn::Attention& attention() const { return *attn_; }

 private:
  std::shared_ptr<VitNorm> norm1_, norm2_;
  std::shared_ptr<nn::Attention> attn_;
  Mlp mlp_;
  double drop_path_;
};

class Vit : public Model {
 public:
  Vit(const VitConfig& config, const std::string& attention_options);
  std::vector<std::string> input_names() const override { return {"x"}; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) override;
  at::Tensor forward(const at::Tensor& x);  // [B, channels, H, W], any size -> [B, classes]
  // [B, N, dim] after the last block, class token first
  at::Tensor features(const at::Tensor& x);
  std::vector<at::Tensor> example_inputs(std::int64_t batch) const override;
  CostSheet cost() const override;
  StateDict adopt(StateDict tensors, std::vector<std::string>& notes) const override;
  at::Tensor fit(const std::string& name, const at::Tensor& stored,
                 std::string& how) const override;

 protected:
  std::vector<Naming> namings() const override;

 private:
  at::Tensor padded(const at::Tensor& x) const;
  void reset();

  VitConfig config_;
  Place place_;
  bool rms_ = false;
  Conv proj_;
  at::Tensor cls_token_, pos_embed_;
  std::shared_ptr<Layers<VitBlock>> blocks_;
  std::shared_ptr<VitNorm> norm_;
  Linear head_;
};

}  // namespace mhla::models
