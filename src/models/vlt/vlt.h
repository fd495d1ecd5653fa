// VLT, the pyramid of RALA and MALA: two stages of linear attention, two of softmax (spec 2.2).
#pragma once

#include "models/attention.h"
#include "models/layers/basic.h"
#include "models/model.h"
#include "models/options.h"
#include "nn/modules/batch_norm.h"

namespace mhla::models {

struct VltConfig {
  std::vector<std::int64_t> widths{64, 128, 256, 512}, depths{2, 2, 6, 2}, heads{1, 2, 4, 8};
  std::vector<std::int64_t> image_size{224};
  std::int64_t channels = 3, classes = 1000;
  double ffn_ratio = 3.5, drop_path = 0.1;
  // LayerScale starts at 1 in the first stages, at 1e-6 from this stage on; -1: in none.
  std::int64_t scaled_from = -1;
  std::string attention = "mhla";  // of the first two stages
  std::int64_t projection = 0;     // width before the head; 0: 1024 for RALA (RAVLT), else 2048
  std::vector<std::int64_t> blocks1{7, 7}, blocks2{4, 4};  // of the mixing matrices

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("widths", widths);
    visit("depths", depths);
    visit("heads", heads);
    visit("image_size", image_size);
    visit("channels", channels);
    visit("classes", classes);
    visit("ffn_ratio", ffn_ratio);
    visit("drop_path", drop_path);
    visit("scaled_from", scaled_from);
    visit("attention", attention);
    visit("projection", projection);
    visit("blocks1", blocks1);
    visit("blocks2", blocks2);
  }
};

using BatchNorm = std::shared_ptr<nn::BatchNorm>;

struct VltBlockShape {
  std::int64_t width = 0;
  double ffn_ratio = 0, drop_path = 0, layer_scale = 1;
};

// [B, C, H, W] -> the same
class VltBlock : public torch::nn::Module {
 public:
  VltBlock(const VltBlockShape& shape, const std::string& attention, const Place& place,
           const std::string& options);
  at::Tensor forward(const at::Tensor& x);
  nn::Attention& attention() const { return *attn_; }

 private:
  at::Tensor feed_forward(const at::Tensor& x) const;
  LayerNorm add_norm(const char* name, std::int64_t width);

  VltBlockShape shape_;
  LayerNorm norm1_, norm2_;
  std::shared_ptr<nn::Attention> attn_;
  Conv fc1_, dwconv_, fc2_, pos_;
  at::Tensor gamma1_, gamma2_;  // [1, C, 1, 1]
};

struct VltStage {
  std::string attention;
  Place place;
  std::shared_ptr<Layers<VltBlock>> blocks;
  Conv reduction;  // null in the last stage
  BatchNorm norm;
};

class Vlt : public Model {
 public:
  Vlt(const VltConfig& config, const std::string& attention_options);
  std::vector<std::string> input_names() const override { return {"x"}; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) override;
  at::Tensor forward(const at::Tensor& x);  // [B, channels, H, W], any size -> [B, classes]
  std::vector<at::Tensor> example_inputs(std::int64_t batch) const override;
  CostSheet cost() const override;
  bool may_lack(const std::string& name) const override { return name.ends_with(".RoPE.angle"); }

 private:
  void add_stem();
  void add_stage(std::size_t index, const std::string& options);
  void reset();

  VltConfig config_;
  std::vector<std::int64_t> stem_grid_;  // tokens after the stem
  std::vector<Conv> stem_;
  std::vector<BatchNorm> stem_norms_;
  std::shared_ptr<torch::nn::Module> layers_;
  std::vector<VltStage> stages_;
  Conv proj_, head_;
  BatchNorm norm_;
};

}  // namespace mhla::models
