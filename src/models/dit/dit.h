// DiT with adaLN-Zero, and DiG, which is the same around another mixer, MLP and scan.
#pragma once

#include "models/attention.h"
#include "models/layers/conditioning.h"
#include "models/layers/residual.h"
#include "models/model.h"
#include "models/options.h"

namespace mhla::models {

struct DitConfig {
  std::int64_t dim = 384, depth = 12, heads = 6, patch = 2, channels = 4, classes = 1000;
  std::vector<std::int64_t> image_size{256};  // pixels; the latent is an eighth of it
  double mlp_ratio = 4.0;
  std::string attention = "mhla";
  std::vector<std::int64_t> blocks{4, 4};  // of the mixing matrix
  bool learn_sigma = true;
  double class_dropout = 0.1;        // labels replaced by the null class while training
  bool dwconv = false;               // a depthwise 3x3 at the end of each block
  std::string mlp = "gelu";          // gelu, swiglu (DiG)
  std::string scan = "none";         // none, quad (DiG: four directions in turn)
  std::int64_t frequency_shift = 0;  // see TimestepOptions

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
    visit("learn_sigma", learn_sigma);
    visit("class_dropout", class_dropout);
    visit("dwconv", dwconv);
    visit("mlp", mlp);
    visit("scan", scan);
    visit("frequency_shift", frequency_shift);
  }
};

// DiG: `gate_proj` holds gate and value one after the other.
class FusedSwiGlu : public torch::nn::Module {
 public:
  FusedSwiGlu(std::int64_t width, std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  Linear gate_proj_, down_proj_;
};

class DitBlock : public torch::nn::Module {
 public:
  DitBlock(const DitConfig& config, const Place& place, const std::string& options);
  void forward(Residual& x, const at::Tensor& c);  // [B, N, C], [B, C]
  // The convolution at the end, on tokens that lie on `grid`.
  bool convolves() const { return dw_conv_ != nullptr; }
  at::Tensor convolved(const at::Tensor& x, at::IntArrayRef grid) const;
  nn::Attention& attention() const { return *attn_; }
  void reset();

 private:
  LayerNorm norm_;
  std::shared_ptr<nn::Attention> attn_;
  Mlp mlp_;
  std::shared_ptr<FusedSwiGlu> glu_;
  std::shared_ptr<Modulation> modulation_;
  Conv dw_conv_;
};

class Dit : public Model {
 public:
  Dit(const DitConfig& config, const std::string& attention_options);
  std::vector<std::string> input_names() const override { return {"x", "t", "y"}; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) override;
  // x [B, channels, H, W], t [B], y [B] -> [B, 2 * channels, H, W] (noise, then variance)
  at::Tensor forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& y);
  std::vector<at::Tensor> example_inputs(std::int64_t batch) const override;
  CostSheet cost() const override;
  bool may_lack(const std::string& name) const override { return name == "pos_embed"; }
  StateDict adopt(StateDict tensors, std::vector<std::string>& notes) const override;
  at::Tensor fit(const std::string& name, const at::Tensor& stored,
                 std::string& how) const override;

 protected:
  std::vector<Naming> namings() const override;

 private:
  Naming facebook() const;
  Naming diffusers() const;
  void run_blocks(Residual& x, const at::Tensor& c, std::vector<std::int64_t> grid);
  at::Tensor final_layer(Residual& x, const at::Tensor& c) const;
  at::Tensor positions(const std::vector<std::int64_t>& grid, const at::Tensor& like) const;
  std::int64_t out_channels() const { return config_.channels * (config_.learn_sigma ? 2 : 1); }
  void reset();

  DitConfig config_;
  Place place_;
  at::Tensor pos_embed_;
  Conv proj_;
  std::shared_ptr<TimestepEmbedder> t_embedder_;
  std::shared_ptr<LabelEmbedder> y_embedder_;
  std::shared_ptr<Layers<DitBlock>> blocks_;
  LayerNorm norm_final_;
  Linear linear_;
  std::shared_ptr<Modulation> final_modulation_;
};

}  // namespace mhla::models
