#include "models/vit/vit.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "models/layers/init.h"
#include "models/layers/position.h"
#include "models/layers/recompute.h"

namespace mhla::models {
namespace {

using at::Tensor;

constexpr double kEps = 1e-6;

const ModelFamily kFamily("deit",
                          {{"deit-t", "dim=192 heads=3"},
                           {"deit-s", "dim=384 heads=6"},
                           {"deit-b", "dim=768 heads=12"},
                           {"tiny-deit",
                            "dim=48 depth=2 heads=3 patch=4 image_size=32 classes=10"}},
                          [](const Request& request) {
                            return std::make_shared<Vit>(read_config<VitConfig>(request),
                                                         request.attention);
                          });

// The next multiple of `n`.
std::int64_t rounded(std::int64_t value, std::int64_t n) { return (value + n - 1) / n * n; }

// Rows and columns of `tokens` patches: a square, else the proportions of `like`; or nothing.
std::vector<std::int64_t> grid_of(std::int64_t tokens, const std::vector<std::int64_t>& like) {
  for (const double ratio : {1.0, static_cast<double>(like[0]) / static_cast<double>(like[1])}) {
    const auto rows = std::llround(std::sqrt(static_cast<double>(tokens) * ratio));
    if (rows < 1 || tokens % rows != 0) continue;
    const std::int64_t columns = tokens / rows;
    if (ratio == 1.0 ? rows == columns : rows * like[1] == columns * like[0]) {
      return {rows, columns};
    }
  }
  return {};
}

}  // namespace

VitNorm::VitNorm(std::int64_t width, bool rms)
    : weight_(register_parameter("weight", at::ones({width}))) {
  if (!rms) bias_ = register_parameter("bias", at::zeros({width}));
}

nn::functional::Norm VitNorm::norm() const {
  return {.weight = weight_, .bias = bias_, .eps = kEps, .rms = !bias_.defined()};
}

VitBlock::VitBlock(const VitConfig& config, const Place& place, const std::string& options,
                   bool rms, double drop_path)
    : drop_path_(drop_path) {
  norm1_ = register_module("norm1", std::make_shared<VitNorm>(config.dim, rms));
  attn_ = register_module("attn", make_attention(config.attention, place, options));
  norm2_ = register_module("norm2", std::make_shared<VitNorm>(config.dim, rms));
  const auto hidden = std::llround(static_cast<double>(config.dim) * config.mlp_ratio);
  mlp_ = register_module("mlp",
                         std::make_shared<MlpLayer>(config.dim, hidden, config.dim, Gelu::exact));
}

void VitBlock::forward(Residual& x) {
  x.add_or_drop(x.attended(*attn_, norm1_->norm()), drop_path_, is_training());
  x.add_or_drop(mlp_->forward(x.normed(norm2_->norm())), drop_path_, is_training());
}

Vit::Vit(const VitConfig& config, const std::string& attention_options) : config_(config) {
  config_.image_size = picture_size("image_size", config.image_size);
  const bool mixed = config.attention == "mhla";
  rms_ = config.norm == "auto" ? config.attention == "linear" : config.norm == "rms";
  if (config.norm != "auto" && config.norm != "rms" && config.norm != "layer") {
    fail("models", "norm: expected auto, layer or rms, got '", config.norm, "'");
  }
  const bool stock = config.attention == "softmax" || config.attention == "inline";
  place_ = {.task = Task::classification,
            .dim = config.dim,
            .heads = config.heads,
            .blocks = config.blocks,
            .class_token = choice("class_token", config.class_token, stock)};
  std::int64_t& padding = config_.padding;
  const std::int64_t side = rounded(config_.image_size[0], config.patch) / config.patch;
  if (padding < 0) {
    padding = mixed ? (rounded(side, config.blocks[0]) - side) * config.patch / 2 : 0;
  }
  for (const std::int64_t size : config_.image_size) {
    place_.grid.push_back(rounded(size + 2 * padding, config.patch) / config.patch);
  }

  const std::int64_t dim = config.dim;
  if (place_.class_token) cls_token_ = register_parameter("cls_token", new_parameter({1, 1, dim}));
  pos_embed_ = register_parameter("pos_embed", new_parameter({1, place_.count(), dim}));
  const auto patch_embed = register_module("patch_embed", std::make_shared<torch::nn::Module>());
  proj_ = patch_embed->register_module("proj", make_conv({.in = config.channels,
                                                          .out = dim,
                                                          .kernel = {config.patch, config.patch},
                                                          .stride = {config.patch, config.patch}}));
  blocks_ = register_module("blocks", std::make_shared<Layers<VitBlock>>());
  for (std::int64_t i = 0; i < config.depth; ++i) {
    const double rate = config.depth < 2 ? 0.0
                                         : config.drop_path * static_cast<double>(i) /
                                               static_cast<double>(config.depth - 1);
    blocks_->push_back(std::make_shared<VitBlock>(config_, place_, attention_options, rms_, rate));
  }
  // timm: after average pooling the norm has another name.
  norm_ = register_module(place_.class_token ? "norm" : "fc_norm",
                          std::make_shared<VitNorm>(dim, rms_));
  head_ = register_module("head", make_linear(dim, config.classes, true));
  reset();
}

void Vit::reset() {
  init::each<nn::LinearLayer>(*this, [](nn::LinearLayer& layer, const std::string&) {
    init::trunc_normal(layer.weight, 0.02);
    init::constant(layer.bias, 0.0);
  });
  init::torch_default(proj_->weight, proj_->bias);
  init::trunc_normal(pos_embed_, 0.02);
  init::normal(cls_token_, 1e-6);
}

Tensor Vit::padded(const Tensor& x) const {
  const std::int64_t p = config_.padding, patch = config_.patch;
  const std::int64_t height = x.size(2) + 2 * p, width = x.size(3) + 2 * p;
  const std::int64_t below = p + rounded(height, patch) - height;
  const std::int64_t right = p + rounded(width, patch) - width;
  return p + below + right == 0 ? x : at::constant_pad_nd(x, {p, right, p, below});
}

Tensor Vit::features(const Tensor& pixels) {
  if (pixels.dim() != 4 || pixels.size(1) != config_.channels) {
    fail("models", name, ": x: expected [B, ", config_.channels, ", H, W], got ", pixels.sizes());
  }
  const Tensor whole = padded(pixels);
  const std::vector<std::int64_t> grid{whole.size(2) / config_.patch,
                                       whole.size(3) / config_.patch};
  Tensor tokens = patch_tokens(*proj_, whole);
  if (place_.class_token) {
    tokens = at::cat({cls_token_.expand({tokens.size(0), -1, -1}), tokens}, 1);
  }
  const Tensor positions = grid == place_.grid ? pos_embed_
                                               : resize_positions(pos_embed_, place_.grid, grid);
  // Under autocast tokens are narrower than the sum, which the kernel of sum and norm refuses.
  const bool alike = tokens.scalar_type() == positions.scalar_type();
  Residual x(alike ? tokens : tokens + positions);
  if (alike) x.add(positions.expand_as(tokens));
  for (const auto& block : *blocks_) {
    block->attention().set_grid(grid);
    recompute_block(x, {}, [block](Residual& y, const auto&) { block->forward(y); });
  }
  return x.value();
}

Tensor Vit::forward(const Tensor& pixels) {
  const Tensor x = features(pixels);
  // A norm acts on each token alone, so the class token can go first.
  const Tensor pooled = place_.class_token ? x.select(1, 0) : x.mean(1);
  return head_->forward(nn::functional::normed(pooled, norm_->norm()));
}

Tensor Vit::forward(const std::vector<Tensor>& inputs) {
  check_inputs(inputs);
  return forward(inputs[0]);
}

std::vector<Tensor> Vit::example_inputs(std::int64_t batch) const {
  return {at::randn({batch, config_.channels, config_.image_size[0], config_.image_size[1]})};
}

CostSheet Vit::cost() const {
  CostSheet sheet;
  const double n = static_cast<double>(place_.count()), dim = static_cast<double>(config_.dim);
  const double patches = n - (place_.class_token ? 1 : 0);
  const double patch = static_cast<double>(config_.patch * config_.patch * config_.channels);
  sheet.linear("embedding", patches, patch, dim);
  for (const auto& block : *blocks_) {
    sheet.keep("norms", 2 * n * dim);
    count_attention(sheet, config_.attention, place_, block->attention());
    count_mlp(sheet, n, dim, dim * config_.mlp_ratio);
  }
  sheet.linear("head", 1, dim, static_cast<double>(config_.classes));
  return sheet;
}

Tensor Vit::fit(const std::string& parameter, const Tensor& stored, std::string& how) const {
  if (parameter != "pos_embed") return Model::fit(parameter, stored, how);
  if (stored.dim() != 3 || stored.size(2) != config_.dim) return {};
  // A network without class token takes the positions of one with; not the reverse.
  for (const std::int64_t before : {0, 1}) {
    if (place_.class_token && before == 0) continue;
    const std::vector<std::int64_t> from = grid_of(stored.size(1) - before, place_.grid);
    if (from.empty()) continue;
    const bool drops = !place_.class_token && before > 0;
    how = "positions of " + std::to_string(from[0]) + "x" + std::to_string(from[1]) +
          " tokens resized" + (drops ? ", the class token's left out" : "");
    return resize_positions(drops ? stored.slice(1, before) : stored, from, place_.grid);
  }
  return {};
}

}  // namespace mhla::models
