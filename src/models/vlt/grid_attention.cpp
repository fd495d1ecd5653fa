#include "models/vlt/grid_attention.h"

#include <ATen/ops/ones.h>

#include "nn/attention.h"
#include "nn/functional/layers.h"
#include "nn/mixing.h"

namespace mhla::models {
namespace {

using at::Tensor;
namespace f = nn::functional;

Normalizer parse_normalizer(const std::string& word) {
  for (const auto value : {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
    if (word == name(value)) return value;
  }
  fail("models", "normalizer: expected exact, shared_position or none, got '", word, "'");
}

FeatureMap parse_feature_map(const std::string& word) {
  for (const auto value : {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1}) {
    if (word == name(value)) return value;
  }
  fail("models", "feature_map: expected relu_eps, relu or elu1, got '", word, "'");
}

}  // namespace

GridAttention::GridAttention(const std::string& name, const Place& place,
                             const std::string& options)
    : heads_(place.heads), made_for_(BlockLayout::grid(place.grid, {.blocks = {1, 1}})) {
  const bool mixed = name == "mhla";
  std::string init = "locality", normalizer = "exact", feature_map = "relu_eps";
  std::vector<std::int64_t> blocks = mixed ? place.blocks : std::vector<std::int64_t>{1, 1};
  nn::OptionReader reader(name, options);
  bool freeze_mixing = false;
  if (mixed) {
    reader("init", init);
    reader("blocks", blocks);
    reader("freeze_mixing", freeze_mixing);
  }
  reader("normalizer", normalizer);
  reader("feature_map", feature_map);
  reader.finish();
  normalizer_ = parse_normalizer(normalizer);
  feature_map_ = parse_feature_map(feature_map);
  blocks_ = blocks_within(blocks, place.grid);
  layout_ = {place.grid, {.blocks = blocks_}};
  made_for_ = layout_.of(0);
  nn::check_heads("vlt", place.dim, heads_);
  qkvo_ = register_module("qkvo", nn::make_pointwise(place.dim, 4 * place.dim));
  lepe_ = register_module("lepe", nn::make_depthwise(place.dim, 5));
  proj_ = register_module("proj", nn::make_pointwise(place.dim, place.dim));
  if (!mixed) {
    mixing_ = at::ones({1, 1, 1, 1});
    return;
  }
  const auto piece = register_module("piece_attn", std::make_shared<torch::nn::Module>());
  const auto conv = piece->register_module("conv", std::make_shared<torch::nn::Module>());
  const Tensor start = nn::initial_mixing(init, made_for_);
  mixing_ = conv->register_parameter("weight", start.unsqueeze(-1).unsqueeze(-1).clone(),
                                     /*requires_grad=*/!freeze_mixing);
}

void GridAttention::set_grid(const std::vector<std::int64_t>& grid) {
  layout_ = {grid, {.blocks = blocks_within(blocks_, grid)}};
}

Tensor GridAttention::matrix() {
  const Tensor made = mixing_.squeeze(-1).squeeze(-1);
  const BlockLayout wanted = layout_.of(0);
  return wanted.mixing_size() == made.size(0) ? made : interpolated(made, wanted);
}

Tensor GridAttention::forward(const Tensor& x) {
  const auto qkvo = nn::apply_pointwise(qkvo_, x).unflatten(-1, {4, heads_, -1}).unbind(2);
  const Tensor q = nn::apply_feature_map(feature_map_, qkvo[0]);
  const Tensor k = nn::apply_feature_map(feature_map_, qkvo[1]);
  nn::AttentionOptions options{
      .layout = layout_, .normalizer = normalizer_, .feature_map = FeatureMap::identity};
  const bool normalised = normalizer_ != Normalizer::none;
  const Tensor mixing = matrix().to(x.device());
  const Tensor o = nn::attention(f::rotary_grid(q, layout_.grid), f::rotary_grid(k, layout_.grid),
                                 qkvo[2], mixing, options, normalised ? q : Tensor(),
                                 normalised ? k : Tensor());
  const Tensor local = f::grid_convolution(qkvo[2], layout_.grid, lepe_->weight, lepe_->bias);
  return nn::apply_pointwise(proj_, ((o + local) * qkvo[3]).flatten(2));
}

void GridAttention::constrain() {
  if (!mixing_.requires_grad()) return;
  nn::constrain_mixing_(mixing_.detach().squeeze(-1).squeeze(-1), 0.0, 1.0, false);
}

}  // namespace mhla::models
