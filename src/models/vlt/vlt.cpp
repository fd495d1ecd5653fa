#include "models/vlt/vlt.h"

#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/conv.h>

#include "models/layers/init.h"
#include "models/layers/recompute.h"

namespace mhla::models {
namespace {

using at::Tensor;

const ModelFamily kFamily(
    "vlt",
    {{"vlt-t", ""},
     {"vlt-s", "widths=64x128x320x512 depths=3x5x9x3 heads=1x2x5x8 drop_path=0.15"},
     {"vlt-b", "widths=96x192x384x512 depths=4x6x12x6 heads=1x2x6x8 drop_path=0.4 scaled_from=2"},
     {"vlt-l", "widths=96x192x448x640 depths=4x7x19x8 heads=1x2x7x10 drop_path=0.55 scaled_from=0"},
     {"tiny-vlt",
      "widths=16x32x48x64 depths=1x1x1x1 heads=1x2x3x4 image_size=64 classes=10 "
      "projection=64 blocks1=4x4 blocks2=2x2"}},
    [](const Request& request) {
      return std::make_shared<Vlt>(read_config<VltConfig>(request), request.attention);
    });

// What a 3x3 convolution of stride 2 leaves.
std::int64_t halved(std::int64_t size) { return (size + 1) / 2; }

BatchNorm make_batch_norm(std::int64_t width) { return std::make_shared<nn::BatchNorm>(width); }

Conv make_3x3(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return make_conv(
      {.in = in, .out = out, .kernel = {3, 3}, .stride = {stride, stride}, .padding = {1, 1}});
}

}  // namespace

Vlt::Vlt(const VltConfig& config, const std::string& attention_options) : config_(config) {
  config_.image_size = picture_size("image_size", config.image_size);
  if (config_.projection == 0) {
    // MAViT-L's head is wider as its last stage is.
    const bool large = config.widths.back() > 512;
    config_.projection = config.attention == "rala" ? 1024 : (large ? 2560 : 2048);
  }
  for (const auto* list : {&config.widths, &config.depths, &config.heads}) {
    if (list->size() != 4) fail("models", "widths, depths, heads: expected four stages");
  }
  for (const std::int64_t size : config_.image_size) stem_grid_.push_back(halved(halved(size)));
  add_stem();
  layers_ = register_module("layers", std::make_shared<torch::nn::Module>());
  for (std::size_t i = 0; i < 4; ++i) add_stage(i, attention_options);
  const std::int64_t last = config.widths.back(), width = config_.projection;
  proj_ = register_module("proj", make_conv({.in = last, .out = width, .kernel = {1, 1}}));
  norm_ = register_module("norm", make_batch_norm(width));
  head_ = register_module("head",
                          make_conv({.in = width, .out = config.classes, .kernel = {1, 1}}));
  reset();
}

// Four convolutions and their norms at 0, 3, 6 and 9 of a Sequential; GELU between them.
void Vlt::add_stem() {
  const std::int64_t width = config_.widths[0], half = width / 2;
  const auto patch_embed = register_module("patch_embed", std::make_shared<torch::nn::Module>());
  const auto proj = patch_embed->register_module("proj", std::make_shared<torch::nn::Module>());
  const std::vector<Conv> convolutions{make_3x3(config_.channels, half, 2), make_3x3(half, half, 1),
                                       make_3x3(half, half, 1), make_3x3(half, width, 2)};
  for (std::size_t i = 0; i < convolutions.size(); ++i) {
    stem_.push_back(proj->register_module(std::to_string(3 * i), convolutions[i]));
    stem_norms_.push_back(
        proj->register_module(std::to_string(3 * i + 1), make_batch_norm(i == 3 ? width : half)));
  }
}

void Vlt::add_stage(std::size_t index, const std::string& options) {
  const std::int64_t width = config_.widths[index], heads = config_.heads[index];
  VltStage stage;
  const bool replaced = index < 2;
  stage.attention = replaced ? config_.attention : "softmax";
  stage.place = {.task = Task::vlt,
                 .dim = width,
                 .heads = heads,
                 .grid = stem_grid_,
                 .blocks = index == 0 ? config_.blocks1 : config_.blocks2};
  for (std::size_t i = 0; i < index; ++i) {
    for (std::int64_t& axis : stage.place.grid) axis = halved(axis);
  }
  const auto layer = layers_->register_module(std::to_string(index),
                                              std::make_shared<torch::nn::Module>());
  // Upstream stores the angles; here they are computed where they are used.
  const auto rope = layer->register_module("RoPE", std::make_shared<torch::nn::Module>());
  const Tensor angles = at::pow(10000.0, -at::linspace(0, 1, width / heads / 4));
  rope->register_buffer("angle", angles.repeat_interleave(2));
  stage.blocks = layer->register_module("blocks", std::make_shared<Layers<VltBlock>>());
  std::int64_t before = 0, all = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (i < index) before += config_.depths[i];
    all += config_.depths[i];
  }
  for (std::int64_t i = 0; i < config_.depths[index]; ++i) {
    const double rate = config_.drop_path * static_cast<double>(before + i) /
                        static_cast<double>(std::max<std::int64_t>(all - 1, 1));
    const std::int64_t from = config_.scaled_from;
    const bool scaled = from >= 0 && static_cast<std::int64_t>(index) >= from;
    stage.blocks->push_back(
        std::make_shared<VltBlock>(VltBlockShape{.width = width,
                                                 .ffn_ratio = config_.ffn_ratio,
                                                 .drop_path = rate,
                                                 .layer_scale = scaled ? 1e-6 : 1.0},
                                   stage.attention, stage.place, replaced ? options : ""));
  }
  if (index < 3) {
    const auto down = layer->register_module("downsample", std::make_shared<torch::nn::Module>());
    const std::int64_t next = config_.widths[index + 1];
    stage.reduction = down->register_module("reduction", make_3x3(width, next, 2));
    stage.norm = down->register_module("norm", make_batch_norm(next));
  }
  stages_.push_back(std::move(stage));
}

void Vlt::reset() {
  const auto start = [](const Tensor& weight, const Tensor& bias) {
    init::trunc_normal(weight, 0.02);
    init::constant(bias, 0.0);
  };
  init::each<ConvLayer>(*this, [&](ConvLayer& c, const std::string&) { start(c.weight, c.bias); });
  init::each<torch::nn::Conv2dImpl>(
      *this, [&](torch::nn::Conv2dImpl& c, const std::string&) { start(c.weight, c.bias); });
  init::each<nn::LinearLayer>(
      *this, [&](nn::LinearLayer& c, const std::string&) { start(c.weight, c.bias); });
}

Tensor Vlt::forward(const Tensor& pixels) {
  if (pixels.dim() != 4 || pixels.size(1) != config_.channels) {
    fail("models", name, ": x: expected [B, ", config_.channels, ", H, W], got ", pixels.sizes());
  }
  Tensor x = pixels;
  for (std::size_t i = 0; i < stem_.size(); ++i) {
    x = stem_norms_[i]->forward(stem_[i]->forward(x));
    if (i + 1 < stem_.size()) x = gelu(x, Gelu::exact);
  }
  for (const VltStage& stage : stages_) {
    for (const auto& block : *stage.blocks) {
      x = recomputed({x}, [block](const auto& y) { return block->forward(y[0]); });
    }
    if (stage.reduction) x = stage.norm->forward(stage.reduction->forward(x));
  }
  x = at::silu(norm_->forward(proj_->forward(x)));
  return head_->forward(x.mean({2, 3}, /*keepdim=*/true)).flatten(1);
}

Tensor Vlt::forward(const std::vector<Tensor>& inputs) {
  check_inputs(inputs);
  return forward(inputs[0]);
}

std::vector<Tensor> Vlt::example_inputs(std::int64_t batch) const {
  return {at::randn({batch, config_.channels, config_.image_size[0], config_.image_size[1]})};
}

CostSheet Vlt::cost() const {
  CostSheet sheet;
  const auto weights = [&](const char* part, const Conv& conv, double rows) {
    sheet.add(part, rows * static_cast<double>(conv->weight.numel()),
              rows * static_cast<double>(conv->weight.size(1)));
  };
  const double tokens = static_cast<double>(stem_grid_[0] * stem_grid_[1]);
  for (std::size_t i = 0; i < 4; ++i) weights("stem", stem_[i], i == 3 ? tokens : 4 * tokens);
  double n = 0;
  for (const VltStage& stage : stages_) {
    n = static_cast<double>(stage.place.count());
    const double width = static_cast<double>(stage.place.dim), hidden = width * config_.ffn_ratio;
    for (const auto& block : *stage.blocks) {
      sheet.add("convolution", 9 * n * width, n * width);
      sheet.keep("norms", 4 * n * width);  // norm and LayerScale, twice
      count_attention(sheet, stage.attention, stage.place, block->attention());
      sheet.add("mlp", 9 * n * hidden, n * hidden);
      count_mlp(sheet, n, width, hidden);
    }
    if (stage.reduction) weights("stem", stage.reduction, n / 4);
  }
  weights("head", proj_, n);
  weights("head", head_, 1);
  return sheet;
}

}  // namespace mhla::models
