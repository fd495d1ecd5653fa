// Wan2.1 text-to-video, with MHLA in the place of self-attention in all layers or in some.
#pragma once

#include "models/attention.h"
#include "models/layers/basic.h"
#include "models/layers/residual.h"
#include "models/model.h"
#include "models/options.h"

namespace mhla::models {

struct WanConfig {
  std::int64_t dim = 1536, depth = 30, heads = 12, ffn = 8960, channels = 16;
  std::int64_t text_length = 512, text_dim = 4096;
  std::vector<std::int64_t> video_size{81, 480, 800};  // frames, height, width in pixels
  std::string attention = "mhla";
  std::vector<std::int64_t> blocks{3, 5, 10};  // of the mixing matrix
  std::int64_t softmax_every = 0;  // hybrid: softmax stays in layers 0, n, 2n ...; 0: in none

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("depth", depth);
    visit("heads", heads);
    visit("ffn", ffn);
    visit("channels", channels);
    visit("text_length", text_length);
    visit("text_dim", text_dim);
    visit("video_size", video_size);
    visit("attention", attention);
    visit("blocks", blocks);
    visit("softmax_every", softmax_every);
  }
};

// q of the video, k and v of the text; RMSNorm over the full width of q and k.
class WanCrossAttention : public torch::nn::Module {
 public:
  WanCrossAttention(std::int64_t dim, std::int64_t heads);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& text) const;

 private:
  std::int64_t heads_;
  Linear q_, k_, v_, o_;
  nn::RmsNorm norm_q_, norm_k_;
};

class WanBlock : public torch::nn::Module {
 public:
  WanBlock(const WanConfig& config, const std::string& attention, const Place& place,
           const std::string& options);
  // x [B, N, C], e [B, 6, C], text [B, L, C]
  void forward(Residual& x, const at::Tensor& e, const at::Tensor& text);
  nn::Attention& attention() const { return *self_attn_; }
  void set_grid(const std::vector<std::int64_t>& grid);  // frames, height, width
  void reset();

  const std::string kind;  // of its self-attention

 private:
  LayerNorm norm_, norm3_;
  std::shared_ptr<nn::Attention> self_attn_;
  std::shared_ptr<WanCrossAttention> cross_attn_;
  Linear ffn0_, ffn2_;
  at::Tensor modulation_;  // [1, 6, C]
};

// The options of a network that the authors' Wan-MHLA checkpoint fits: which layers have MHLA, and
// which of its forms, told by the tensors' names. (Layers without rotary store no sign of it.)
std::string wan_options(const StateDict& tensors);

class Wan : public Model {
 public:
  Wan(const WanConfig& config, const std::string& attention_options);
  std::vector<std::string> input_names() const override { return {"x", "t", "text"}; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) override;
  // x [B, channels, F, H, W], t [B], text [B, up to text_length, text_dim] -> as x
  at::Tensor forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& text);
  std::vector<at::Tensor> example_inputs(std::int64_t batch) const override;
  CostSheet cost() const override;

 protected:
  std::vector<Naming> namings() const override;

 private:
  at::Tensor embed_text(const at::Tensor& text) const;
  void reset();

  WanConfig config_;
  Place place_;
  Conv patch_embedding_;
  Linear text0_, text2_, time0_, time2_, time_projection_, head_;
  std::shared_ptr<Layers<WanBlock>> blocks_;
  LayerNorm norm_;
  at::Tensor head_modulation_;  // [1, 2, C]
};

}  // namespace mhla::models
