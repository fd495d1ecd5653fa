#include "models/wan/wan.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>

#include <cmath>

#include "models/layers/init.h"
#include "models/layers/position.h"
#include "models/layers/recompute.h"

namespace mhla::models {
namespace {

using at::Tensor;

constexpr std::int64_t kTimeWaves = 256;
constexpr std::int64_t kPatch = 2;  // of height and width; frames are not joined

const ModelFamily kFamily(
    "wan",
    {{"wan2.1-1.3b", ""},
     {"wan2.1-1.3b-hybrid", "softmax_every=3"},
     {"tiny-wan",
      "dim=48 depth=2 heads=2 ffn=96 text_length=16 text_dim=24 video_size=9x64x96 "
      "blocks=1x2x2"}},
    [](const Request& request) {
      return std::make_shared<Wan>(read_config<WanConfig>(request), request.attention);
    });

// `name.0` and `name.2` of a Sequential
std::pair<Linear, Linear> add_pair(torch::nn::Module& root, const char* name, std::int64_t in,
                                   std::int64_t width) {
  const auto holder = root.register_module(name, std::make_shared<torch::nn::Module>());
  return {holder->register_module("0", make_linear(in, width, true)),
          holder->register_module("2", make_linear(width, width, true))};
}

}  // namespace

Wan::Wan(const WanConfig& config, const std::string& attention_options) : config_(config) {
  if (config.video_size.size() != 3) {
    fail("models", "video_size: expected FRAMESxHEIGHTxWIDTH");
  }
  // The autoencoder joins 4 frames, the first alone, and 8x8 pixels.
  const std::int64_t frames = (config.video_size[0] - 1) / 4 + 1;
  place_ = {
      .task = Task::video,
      .dim = config.dim,
      .heads = config.heads,
      .grid = {frames, config.video_size[1] / (8 * kPatch), config.video_size[2] / (8 * kPatch)},
      .blocks = config.blocks};
  const std::int64_t dim = config.dim;
  patch_embedding_ = register_module("patch_embedding", make_conv({.in = config.channels,
                                                                   .out = dim,
                                                                   .kernel = {1, kPatch, kPatch},
                                                                   .stride = {1, kPatch, kPatch}}));
  std::tie(text0_, text2_) = add_pair(*this, "text_embedding", config.text_dim, dim);
  std::tie(time0_, time2_) = add_pair(*this, "time_embedding", kTimeWaves, dim);
  const auto projection = register_module("time_projection", std::make_shared<torch::nn::Module>());
  time_projection_ = projection->register_module("1", make_linear(dim, 6 * dim, true));
  blocks_ = register_module("blocks", std::make_shared<Layers<WanBlock>>());
  for (std::int64_t i = 0; i < config.depth; ++i) {
    const bool softmax = config.softmax_every > 0 && i % config.softmax_every == 0;
    blocks_->push_back(std::make_shared<WanBlock>(config_, softmax ? "softmax" : config.attention,
                                                  place_, softmax ? "" : attention_options));
  }
  const auto head = register_module("head", std::make_shared<torch::nn::Module>());
  norm_ = std::make_shared<LayerNormLayer>(dim, 1e-6, false);
  head_ = head->register_module("head", make_linear(dim, kPatch * kPatch * config.channels, true));
  head_modulation_ = head->register_parameter("modulation", new_parameter({1, 2, dim}));
  reset();
}

void Wan::reset() {
  init::each<nn::LinearLayer>(*this, [](nn::LinearLayer& layer, const std::string& name) {
    const bool embedding = name.starts_with("text_embedding") || name.starts_with("time_embedding");
    embedding ? init::normal(layer.weight, 0.02) : init::xavier(layer.weight);
    init::constant(layer.bias, 0.0);
  });
  init::xavier(patch_embedding_->weight);
  init::constant(patch_embedding_->bias, 0.0);
  for (const auto& block : *blocks_) block->reset();
  init::normal(head_modulation_, 1.0 / std::sqrt(static_cast<double>(config_.dim)));
  init::constant(head_->weight, 0.0);
}

// Padding is not masked in cross-attention, so its length matters.
Tensor Wan::embed_text(const Tensor& text) const {
  if (text.dim() != 3 || text.size(2) != config_.text_dim || text.size(1) > config_.text_length) {
    fail("models", name, ": text: expected [B, up to ", config_.text_length, ", ", config_.text_dim,
         "], got ", text.sizes());
  }
  const Tensor padded = at::constant_pad_nd(text, {0, 0, 0, config_.text_length - text.size(1)});
  return text2_->forward(linear_gelu(text0_, padded, Gelu::tanh));
}

Tensor Wan::forward(const Tensor& latent, const Tensor& t, const Tensor& text) {
  if (latent.dim() != 5 || latent.size(1) != config_.channels) {
    fail("models", name, ": x: expected [B, ", config_.channels, ", F, H, W], got ",
         latent.sizes());
  }
  const std::vector<std::int64_t> grid{latent.size(2), latent.size(3) / kPatch,
                                       latent.size(4) / kPatch};
  const Tensor tokens = patch_tokens(*patch_embedding_, latent);
  Residual x(tokens);
  const Tensor waves = embed_timesteps(t, {.width = kTimeWaves, .type = at::kDouble});
  const Tensor e = time2_->forward(
      at::silu(time0_->forward(waves.to(time0_->weight.scalar_type()))));
  const Tensor e0 = time_projection_->forward(at::silu(e)).unflatten(1, {6, config_.dim});
  const at::ScalarType type = tokens.scalar_type();
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor words = embed_text(text), e0_wide = e0.to(wide);
  for (const auto& block : *blocks_) {
    block->set_grid(grid);
    recompute_block(x, {e0_wide, words}, [block](Residual& y, const auto& others) {
      block->forward(y, others[0], others[1]);
    });
  }
  const auto m = (head_modulation_.to(wide) + e.to(wide).unsqueeze(1)).to(type).unbind(1);
  const Tensor out = head_->forward(x.normed(norm_->norm(), m[0], m[1]));
  // [B, f, h, w, p, q, channels] -> [B, channels, f, h p, w q]
  return out.unflatten(2, {kPatch, kPatch, config_.channels})
      .unflatten(1, grid)
      .permute({0, 6, 1, 2, 4, 3, 5})
      .flatten(5, 6)
      .flatten(3, 4);
}

Tensor Wan::forward(const std::vector<Tensor>& inputs) {
  check_inputs(inputs);
  return forward(inputs[0], inputs[1], inputs[2]);
}

std::vector<Tensor> Wan::example_inputs(std::int64_t batch) const {
  const auto& g = place_.grid;
  return {at::randn({batch, config_.channels, g[0], g[1] * kPatch, g[2] * kPatch}),
          at::rand({batch}).mul(1000), at::randn({batch, config_.text_length, config_.text_dim})};
}

CostSheet Wan::cost() const {
  CostSheet sheet;
  const double n = static_cast<double>(place_.count()), dim = static_cast<double>(config_.dim);
  const double words = static_cast<double>(config_.text_length);
  const double patch = static_cast<double>(kPatch * kPatch * config_.channels);
  sheet.linear("embedding", n, patch, dim);
  sheet.linear("embedding", words, static_cast<double>(config_.text_dim), dim);
  sheet.linear("embedding", words, dim, dim);
  sheet.linear("modulation", 1, kTimeWaves, dim);
  sheet.linear("modulation", 1, dim, 7 * dim);
  for (const auto& block : *blocks_) {
    sheet.keep("norms", 7 * n * dim);
    count_attention(sheet, block->kind, place_, block->attention());
    sheet.linear("cross-attention", n, dim, dim);
    sheet.linear("cross-attention", words, dim, 2 * dim);
    sheet.add("cross-attention", 2 * n * words * dim, 3 * n * dim + 3 * words * dim);
    sheet.linear("cross-attention", n, dim, dim);
    count_mlp(sheet, n, dim, static_cast<double>(config_.ffn));
  }
  sheet.linear("head", n, dim, patch);
  return sheet;
}

}  // namespace mhla::models
