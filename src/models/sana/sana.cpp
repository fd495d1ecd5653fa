#include "models/sana/sana.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "models/layers/init.h"
#include "models/layers/recompute.h"

namespace mhla::models {
namespace {

using at::Tensor;

constexpr std::int64_t kLatentFactor = 32;

const ModelFamily kFamily(
    "sana",
    {{"sana-0.6b", ""},
     {"tiny-sana",
      "dim=64 depth=2 heads=4 cross_heads=2 channels=4 text_length=12 text_dim=24 "
      "image_size=256"}},
    [](const Request& request) {
      return std::make_shared<Sana>(read_config<SanaConfig>(request), request.attention);
    });

}  // namespace

Sana::Sana(const SanaConfig& config, const std::string& attention_options) : config_(config) {
  config_.image_size = picture_size("image_size", config.image_size);
  place_ = {.task = Task::text_to_image,
            .dim = config.dim,
            .heads = config.heads,
            .blocks = config.blocks};
  for (const std::int64_t pixels : config_.image_size) {
    if (pixels % kLatentFactor != 0) {
      fail("models", "image_size: expected a multiple of ", kLatentFactor, ", got ", pixels);
    }
    place_.grid.push_back(pixels / kLatentFactor);
  }
  const std::int64_t dim = config.dim;
  const auto x_embedder = register_module("x_embedder", std::make_shared<torch::nn::Module>());
  proj_ = x_embedder->register_module(
      "proj", make_conv({.in = config.channels, .out = dim, .kernel = {1, 1}}));
  t_embedder_ = register_module("t_embedder",
                                std::make_shared<TimestepEmbedder>(dim, TimestepOptions{}));
  t_block_ = register_module("t_block", std::make_shared<Modulation>(dim, 6));
  const auto y_embedder = register_module("y_embedder", std::make_shared<torch::nn::Module>());
  y_proj_ = y_embedder->register_module(
      "y_proj", std::make_shared<MlpLayer>(config.text_dim, dim, dim, Gelu::tanh));
  const double spread = 1.0 / std::sqrt(static_cast<double>(config.text_dim));
  y_embedding_ = y_embedder->register_buffer(
      "y_embedding", at::randn({config.text_length, config.text_dim}).mul_(spread));
  y_norm_ = register_module("attention_y_norm", nn::make_rms_norm(dim, 1e-5));
  blocks_ = register_module("blocks", std::make_shared<Layers<SanaBlock>>());
  for (std::int64_t i = 0; i < config.depth; ++i) {
    blocks_->push_back(std::make_shared<SanaBlock>(config_, place_, attention_options));
  }
  const auto last = register_module("final_layer", std::make_shared<torch::nn::Module>());
  norm_ = std::make_shared<LayerNormLayer>(dim, 1e-6, /*affine=*/false);
  linear_ = last->register_module("linear", make_linear(dim, config.channels, true));
  final_table_ = last->register_parameter("scale_shift_table", new_parameter({2, dim}));
  reset();
}

void Sana::reset() {
  init::each<nn::LinearLayer>(*this, [](nn::LinearLayer& layer, const std::string& name) {
    const bool steering = name.starts_with("t_block") || name.starts_with("y_embedder");
    steering ? init::normal(layer.weight, 0.02) : init::xavier(layer.weight);
    init::constant(layer.bias, 0.0);
  });
  init::each<ConvLayer>(*this, [](ConvLayer& layer, const std::string&) {
    init::torch_default(layer.weight, layer.bias);
  });
  init::xavier(proj_->weight);
  init::constant(proj_->bias, 0.0);
  t_embedder_->reset(0.02);
  init::constant(y_norm_->weight, 0.01);
  for (const auto& block : *blocks_) block->reset();
  init::normal(final_table_, 1.0 / std::sqrt(static_cast<double>(config_.dim)));
  init::constant(linear_->weight, 0.0);
}

// While training, some captions are replaced by the empty one.
Tensor Sana::embed_text(const Tensor& text) const {
  if (text.dim() != 3 || text.size(2) != config_.text_dim) {
    fail("models", name, ": text: expected [B, L, ", config_.text_dim, "], got ", text.sizes());
  }
  Tensor words = text;
  if (is_training() && config_.caption_dropout > 0 && text.size(1) <= config_.text_length) {
    const Tensor dropped = at::rand({text.size(0), 1, 1}, text.options().dtype(at::kFloat))
                               .lt(config_.caption_dropout);
    words = at::where(dropped, y_embedding_.slice(0, 0, text.size(1)).to(text.scalar_type()), text);
  }
  return y_norm_->forward(y_proj_->forward(words));
}

Tensor Sana::forward(const Tensor& latent, const Tensor& t, const Tensor& text,
                     const Tensor& mask) {
  if (latent.dim() != 4 || latent.size(1) != config_.channels) {
    fail("models", name, ": x: expected [B, ", config_.channels, ", H, W], got ", latent.sizes());
  }
  const std::vector<std::int64_t> grid{latent.size(2), latent.size(3)};
  Residual x(patch_tokens(*proj_, latent));
  const Tensor when = t_embedder_->forward(t);
  const Tensor m = t_block_->forward(when).unflatten(1, {6, config_.dim});
  const Tensor words = embed_text(text), there = mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
  for (const auto& block : *blocks_) {
    block->attention().set_grid(grid);
    recompute_block(x, {m, words}, [block, there, grid](Residual& y, const auto& others) {
      block->forward(y, others[0], {.words = others[1], .mask = there}, grid);
    });
  }
  const auto last = (final_table_ + when.unsqueeze(1)).unbind(1);
  const Tensor out = linear_->forward(x.normed(norm_->norm(), last[0], last[1]));
  return to_grid(out, grid).contiguous();
}

Tensor Sana::forward(const std::vector<Tensor>& inputs) {
  check_inputs(inputs);
  return forward(inputs[0], inputs[1], inputs[2], inputs[3]);
}

std::vector<Tensor> Sana::example_inputs(std::int64_t batch) const {
  return {at::randn({batch, config_.channels, place_.grid[0], place_.grid[1]}),
          at::rand({batch}).mul(1000).floor(),
          at::randn({batch, config_.text_length, config_.text_dim}),
          at::ones({batch, config_.text_length}, at::TensorOptions().dtype(at::kLong))};
}

CostSheet Sana::cost() const {
  CostSheet sheet;
  const double n = static_cast<double>(place_.count()), dim = static_cast<double>(config_.dim);
  const double words = static_cast<double>(config_.text_length), wide = hidden();
  const double channels = static_cast<double>(config_.channels);
  sheet.linear("embedding", n, channels, dim);
  sheet.linear("embedding", words, static_cast<double>(config_.text_dim), dim);
  sheet.linear("embedding", words, dim, dim);
  sheet.linear("modulation", 1, 256, dim);
  sheet.linear("modulation", 1, dim, 7 * dim);
  for (const auto& block : *blocks_) {
    sheet.keep("norms", 6 * n * dim);
    count_attention(sheet, config_.attention, place_, block->attention());
    sheet.linear("cross-attention", n, dim, dim);
    sheet.linear("cross-attention", words, dim, 2 * dim);
    sheet.add("cross-attention", 2 * n * words * dim, n * dim + 2 * words * dim);
    sheet.linear("cross-attention", n, dim, dim);
    sheet.linear("mlp", n, dim, 2 * wide);
    sheet.add("mlp", 9 * n * 2 * wide, 6 * n * wide);
    sheet.linear("mlp", n, wide, dim);
  }
  sheet.linear("head", n, dim, channels);
  return sheet;
}

}  // namespace mhla::models
