#include "models/dit/dit.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <cmath>

#include "models/layers/init.h"
#include "models/layers/recompute.h"

namespace mhla::models {
namespace {

using at::Tensor;

constexpr std::int64_t kLatentFactor = 8;  // pixels of the autoencoder's latent
constexpr std::int64_t kTimesteps = 1000;

std::shared_ptr<Model> make(const Request& request) {
  return std::make_shared<Dit>(read_config<DitConfig>(request), request.attention);
}

const ModelFamily kDit("dit",
                       {{"dit-s/2", "dim=384 depth=12 heads=6"},
                        {"dit-b/2", "dim=768 depth=12 heads=12"},
                        {"dit-l/2", "dim=1024 depth=24 heads=16"},
                        {"dit-xl/2", "dim=1152 depth=28 heads=16"},
                        {"tiny-dit", "dim=48 depth=2 heads=3 image_size=128 classes=10"}},
                       make);
const ModelFamily kDig("dig",
                       {{"dig-s/2",
                         "dim=384 depth=12 heads=6 attention=gla mlp=swiglu dwconv=true scan=quad"},
                        {"tiny-dig",
                         "dim=48 depth=4 heads=3 image_size=128 classes=10 attention=gla "
                         "mlp=swiglu dwconv=true scan=quad"}},
                       make);

// Layers that see all tokens alike need no scan in several directions.
bool is_causal(const std::string& attention) {
  for (const char* each : {"retnet", "gla", "simple_gla", "gated_deltanet", "mamba2"}) {
    if (attention == each) return true;
  }
  return false;
}

}  // namespace

Dit::Dit(const DitConfig& config, const std::string& attention_options) : config_(config) {
  config_.image_size = picture_size("image_size", config.image_size);
  if (config.scan != "none" && config.scan != "quad") {
    fail("models", "scan: expected none or quad, got '", config.scan, "'");
  }
  if (!is_causal(config.attention)) config_.scan = "none";
  place_ = {.task = Task::dit, .dim = config.dim, .heads = config.heads, .blocks = config.blocks};
  const std::int64_t unit = kLatentFactor * config.patch;
  for (const std::int64_t pixels : config_.image_size) {
    if (pixels % unit != 0) {
      fail("models", "image_size: expected a multiple of ", unit, ", got ", pixels);
    }
    place_.grid.push_back(pixels / unit);
  }
  const std::int64_t dim = config.dim, patch = config.patch;
  pos_embed_ = register_parameter("pos_embed", new_parameter({1, place_.count(), dim}),
                                  /*requires_grad=*/false);
  const auto x_embedder = register_module("x_embedder", std::make_shared<torch::nn::Module>());
  proj_ = x_embedder->register_module(
      "proj",
      make_conv(
          {.in = config.channels, .out = dim, .kernel = {patch, patch}, .stride = {patch, patch}}));
  t_embedder_ = register_module(
      "t_embedder",
      std::make_shared<TimestepEmbedder>(dim, TimestepOptions{.shift = config.frequency_shift}));
  y_embedder_ = register_module(
      "y_embedder", std::make_shared<LabelEmbedder>(config.classes, dim, config.class_dropout));
  blocks_ = register_module("blocks", std::make_shared<Layers<DitBlock>>());
  for (std::int64_t i = 0; i < config.depth; ++i) {
    blocks_->push_back(std::make_shared<DitBlock>(config_, place_, attention_options));
  }
  const auto last = register_module("final_layer", std::make_shared<torch::nn::Module>());
  norm_final_ = std::make_shared<LayerNormLayer>(dim, 1e-6, /*affine=*/false);
  linear_ = last->register_module("linear", make_linear(dim, patch * patch * out_channels(), true));
  final_modulation_ = last->register_module("adaLN_modulation",
                                            std::make_shared<Modulation>(dim, 2));
  reset();
}

void Dit::reset() {
  // flash-linear-attention starts its own layers smaller.
  const double inner_gain = is_causal(config_.attention) ? std::pow(2.0, -2.5) : 1.0;
  init::each<nn::LinearLayer>(*this, [&](nn::LinearLayer& layer, const std::string& name) {
    init::xavier(layer.weight, name.find(".attn.") == std::string::npos ? 1.0 : inner_gain);
    init::constant(layer.bias, 0.0);
  });
  init::xavier(proj_->weight);
  init::constant(proj_->bias, 0.0);
  y_embedder_->reset(0.02);
  t_embedder_->reset(0.02);
  for (const auto& block : *blocks_) block->reset();
  for (const Linear& zero : {final_modulation_->linear(), linear_}) {
    init::constant(zero->weight, 0.0);
    init::constant(zero->bias, 0.0);
  }
  if (pos_embed_.is_meta()) return;
  pos_embed_.copy_(sincos_positions(config_.dim, place_.grid).unsqueeze(0));
}

Tensor Dit::positions(const std::vector<std::int64_t>& grid, const Tensor& like) const {
  if (grid == place_.grid) return pos_embed_;
  return sincos_positions(config_.dim, grid).unsqueeze(0).to(like.options());
}

// Natural order in and out. DiG: each block reads the tokens in the order in which the last one
// left them, which is backwards, and after every second block column by column.
void Dit::run_blocks(Residual& x, const Tensor& c, std::vector<std::int64_t> grid) {
  const bool quad = config_.scan == "quad";
  bool backwards = false, transposed = false;
  const auto flip = [&] { x = Residual(x.value().flip(1)), backwards = !backwards; };
  const auto transpose = [&] {
    x = Residual(x.value().unflatten(1, grid).transpose(1, 2).flatten(1, 2));
    std::swap(grid[0], grid[1]);
    transposed = !transposed;
  };
  for (std::size_t i = 0; i < blocks_->size(); ++i) {
    DitBlock& block = (*blocks_)[i];
    block.attention().set_grid(grid);
    recompute_block(x, {c}, [&block, grid](Residual& y, const auto& others) {
      block.forward(y, others[0]);
      if (block.convolves()) y = Residual(block.convolved(y.value(), grid));
    });
    if (quad) flip();
    if (quad && i % 2 == 1) transpose();
  }
  if (backwards) flip();
  if (transposed) transpose();
}

Tensor Dit::final_layer(Residual& x, const Tensor& c) const {
  const auto m = final_modulation_->forward(c).chunk(2, 1);
  return linear_->forward(x.normed(norm_final_->norm(), m[0], m[1]));
}

Tensor Dit::forward(const Tensor& latent, const Tensor& t, const Tensor& y) {
  const std::int64_t p = config_.patch;
  if (latent.dim() != 4 || latent.size(1) != config_.channels || latent.size(2) % p != 0 ||
      latent.size(3) % p != 0) {
    fail("models", name, ": x: expected [B, ", config_.channels, ", H, W] with H and W multiples ",
         "of ", p, ", got ", latent.sizes());
  }
  const std::vector<std::int64_t> grid{latent.size(2) / p, latent.size(3) / p};
  const Tensor tokens = patch_tokens(*proj_, latent);
  Residual x(tokens);
  x.add(positions(grid, tokens).expand_as(tokens));
  const Tensor c = t_embedder_->forward(t) + y_embedder_->forward(y);
  run_blocks(x, c, grid);
  const Tensor out = final_layer(x, c);
  // [B, h, w, p, q, channels] -> [B, channels, h p, w q]
  return out.unflatten(2, {p, p, out_channels()})
      .unflatten(1, grid)
      .permute({0, 5, 1, 3, 2, 4})
      .flatten(4, 5)
      .flatten(2, 3);
}

Tensor Dit::forward(const std::vector<Tensor>& inputs) {
  check_inputs(inputs);
  return forward(inputs[0], inputs[1], inputs[2]);
}

std::vector<Tensor> Dit::example_inputs(std::int64_t batch) const {
  const std::int64_t p = config_.patch;
  return {at::randn({batch, config_.channels, place_.grid[0] * p, place_.grid[1] * p}),
          at::rand({batch}).mul(kTimesteps).floor(),
          at::randint(config_.classes, {batch}, at::TensorOptions().dtype(at::kLong))};
}

CostSheet Dit::cost() const {
  CostSheet sheet;
  const double n = static_cast<double>(place_.count()), dim = static_cast<double>(config_.dim);
  const double pixels = static_cast<double>(config_.patch * config_.patch);
  sheet.linear("embedding", n, pixels * static_cast<double>(config_.channels), dim);
  sheet.linear("embedding", 1, 256, dim);
  sheet.linear("embedding", 1, dim, dim);
  for (const auto& block : *blocks_) {
    sheet.linear("modulation", 1, dim, 6 * dim);
    sheet.keep("norms", 6 * n * dim);  // norm, modulated and gated, twice
    count_attention(sheet, config_.attention, place_, block->attention());
    if (config_.mlp == "swiglu") {
      const double hidden = static_cast<double>((config_.dim * 8 / 3 + 255) / 256 * 256);
      sheet.linear("mlp", n, dim, 2 * hidden);
      sheet.keep("mlp", 2 * n * hidden);
      sheet.linear("mlp", n, hidden, dim);
    } else {
      count_mlp(sheet, n, dim, dim * config_.mlp_ratio);
    }
    if (config_.dwconv) sheet.add("convolution", 9 * n * dim, n * dim);
  }
  sheet.linear("modulation", 1, dim, 2 * dim);
  sheet.linear("head", n, dim, pixels * static_cast<double>(out_channels()));
  return sheet;
}

Tensor Dit::fit(const std::string& parameter, const Tensor& stored, std::string& how) const {
  if (parameter != "pos_embed") return Model::fit(parameter, stored, how);
  how = "positions are computed, not learned";
  return sincos_positions(config_.dim, place_.grid).unsqueeze(0);
}

}  // namespace mhla::models
