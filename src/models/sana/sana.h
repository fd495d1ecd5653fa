// Sana 0.6B text-to-image: linear attention, cross-attention and a convolutional MLP; MHLA takes
// the place of the linear attention.
#pragma once

#include "models/attention.h"
#include "models/layers/conditioning.h"
#include "models/layers/residual.h"
#include "models/model.h"
#include "models/options.h"

namespace mhla::models {

struct SanaConfig {
  std::int64_t dim = 1152, depth = 28, heads = 36, cross_heads = 16, channels = 32;
  std::int64_t text_length = 300, text_dim = 2304;
  std::vector<std::int64_t> image_size{1024};  // pixels; the latent is a 32nd of it
  double mlp_ratio = 2.5, caption_dropout = 0.1;
  std::string attention = "mhla";
  std::vector<std::int64_t> blocks{4, 4};  // of the mixing matrix

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("depth", depth);
    visit("heads", heads);
    visit("cross_heads", cross_heads);
    visit("channels", channels);
    visit("text_length", text_length);
    visit("text_dim", text_dim);
    visit("image_size", image_size);
    visit("mlp_ratio", mlp_ratio);
    visit("caption_dropout", caption_dropout);
    visit("attention", attention);
    visit("blocks", blocks);
  }
};

class SanaCrossAttention : public torch::nn::Module {
 public:
  SanaCrossAttention(std::int64_t dim, std::int64_t heads);
  // mask [B, 1, 1, L], true where there is a word; undefined: everywhere
  at::Tensor forward(const at::Tensor& x, const at::Tensor& text, const at::Tensor& mask) const;
  const Linear& out() const { return proj_; }

 private:
  std::int64_t heads_;
  Linear q_linear_, kv_linear_, proj_;
};

// 1x1 convolution, SiLU, 3x3 depthwise, gate, 1x1 convolution.
class GluConvolution : public torch::nn::Module {
 public:
  GluConvolution(std::int64_t width, std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x, at::IntArrayRef grid) const;  // [B, N, C]

 private:
  Conv inverted_, depth_, point_;
};

class SanaBlock : public torch::nn::Module {
 public:
  SanaBlock(const SanaConfig& config, const Place& place, const std::string& options);
  struct Text {
    at::Tensor words;  // [B, L, C]
    at::Tensor mask;   // see SanaCrossAttention
  };
  // x [B, N, C], t [B, 6, C]
  void forward(Residual& x, const at::Tensor& t, const Text& text, at::IntArrayRef grid);
  nn::Attention& attention() const { return *attn_; }
  void reset();

 private:
  LayerNorm norm_;
  std::shared_ptr<nn::Attention> attn_;
  std::shared_ptr<SanaCrossAttention> cross_attn_;
  std::shared_ptr<GluConvolution> mlp_;
  at::Tensor scale_shift_table_;  // [6, C]
};

class Sana : public Model {
 public:
  Sana(const SanaConfig& config, const std::string& attention_options);
  std::vector<std::string> input_names() const override { return {"x", "t", "text", "mask"}; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) override;
  // x [B, channels, H, W], t [B], text [B, L, text_dim], mask [B, L] (0: no word) -> as x
  at::Tensor forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& text,
                     const at::Tensor& mask);
  std::vector<at::Tensor> example_inputs(std::int64_t batch) const override;
  CostSheet cost() const override;
  bool may_lack(const std::string& name) const override { return name == "y_embedder.y_embedding"; }
  StateDict adopt(StateDict tensors, std::vector<std::string>& notes) const override;

 protected:
  std::vector<Naming> namings() const override;

 private:
  at::Tensor embed_text(const at::Tensor& text) const;
  double hidden() const { return static_cast<double>(config_.dim) * config_.mlp_ratio; }
  void reset();

  SanaConfig config_;
  Place place_;
  Conv proj_;
  std::shared_ptr<TimestepEmbedder> t_embedder_;
  std::shared_ptr<Modulation> t_block_;
  Mlp y_proj_;
  at::Tensor y_embedding_;  // [text_length, text_dim]: the empty caption, a buffer
  nn::RmsNorm y_norm_;
  std::shared_ptr<Layers<SanaBlock>> blocks_;
  LayerNorm norm_;
  Linear linear_;
  at::Tensor final_table_;  // [2, C]
};

}  // namespace mhla::models
