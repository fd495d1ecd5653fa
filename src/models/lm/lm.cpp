#include "models/lm/lm.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/silu.h>

#include "models/layers/init.h"
#include "models/layers/recompute.h"
#include "models/mhla_layer.h"

namespace mhla::models {
namespace {

using at::Tensor;

const ModelFamily kFamily("lm",
                          {{"lm-340m", ""},
                           {"tiny-lm",
                            "vocab=256 dim=64 depth=2 heads=2 context=64 block=16 "
                            "intermediate=128"}},
                          [](const Request& request) {
                            return std::make_shared<Lm>(read_config<LmConfig>(request),
                                                        request.attention);
                          });

// Twins of about the same size.
std::int64_t usual_depth(const std::string& attention) {
  if (attention == "mamba2") return 48;
  // 347 M with the layer's own widths; the paper's gated DeltaNet has 346 M, its config no one.
  return attention == "gated_deltanet" ? 21 : 24;
}

}  // namespace

SwiGlu::SwiGlu(std::int64_t width, std::int64_t hidden)
    : gate_proj_(register_module("gate_proj", make_linear(width, hidden, false))),
      up_proj_(register_module("up_proj", make_linear(width, hidden, false))),
      down_proj_(register_module("down_proj", make_linear(hidden, width, false))) {}

Tensor SwiGlu::forward(const Tensor& x) const {
  return down_proj_->forward(at::silu(gate_proj_->forward(x)) * up_proj_->forward(x));
}

LmBlock::LmBlock(const LmConfig& config, const Place& place, const std::string& options,
                 bool with_mlp) {
  attn_norm_ = register_module("attn_norm", nn::make_rms_norm(config.dim, config.eps));
  attn_ = register_module("attn", make_attention(config.attention, place, options));
  if (!with_mlp) return;
  mlp_norm_ = register_module("mlp_norm", nn::make_rms_norm(config.dim, config.eps));
  mlp_ = register_module("mlp", std::make_shared<SwiGlu>(config.dim, config.intermediate));
}

void LmBlock::add_mlp(Residual& x) const {
  if (mlp_) x.add(mlp_->forward(x.normed(mlp_norm_->norm())));
}

void LmBlock::forward(Residual& x) {
  x.add(x.attended(*attn_, attn_norm_->norm()));
  add_mlp(x);
}

void LmBlock::step(Residual& x, LmLayerState& state) {
  const Tensor normed = x.normed(attn_norm_->norm());
  if (auto* mhla = dynamic_cast<MhlaLayer*>(attn_.get())) {
    x.add(mhla->read(normed, state.stream));
  } else {
    auto [y, after] = attn_->step(normed, state.tensors);
    state.tensors = std::move(after);
    x.add(y);
  }
  add_mlp(x);
}

Lm::Lm(const LmConfig& config, const std::string& attention_options) : config_(config) {
  LmConfig& c = config_;
  if (c.depth == 0) c.depth = usual_depth(c.attention);
  if (c.heads == 0) c.heads = c.attention == "softmax" ? 16 : 4;
  if (c.intermediate == 0) c.intermediate = (c.dim * 8 / 3 + 255) / 256 * 256;
  with_mlp_ = choice("mlp", c.mlp, c.attention != "mamba2");
  place_ = {.task = Task::language,
            .dim = c.dim,
            .heads = c.heads,
            .tokens = c.context,
            .block = c.block};
  const auto model = register_module("model", std::make_shared<torch::nn::Module>());
  embeddings_ = model->register_module("embeddings", std::make_shared<TableLayer>(c.vocab, c.dim));
  layers_ = model->register_module("layers", std::make_shared<Layers<LmBlock>>());
  for (std::int64_t i = 0; i < c.depth; ++i) {
    layers_->push_back(std::make_shared<LmBlock>(c, place_, attention_options, with_mlp_));
  }
  norm_ = model->register_module("norm", nn::make_rms_norm(c.dim, c.eps));
  if (!c.tied) head_ = register_module("lm_head", make_linear(c.dim, c.vocab, false));

  init::each<nn::LinearLayer>(*this, [](nn::LinearLayer& layer, const std::string&) {
    init::normal(layer.weight, 0.02);
    init::constant(layer.bias, 0.0);
  });
  init::normal(embeddings_->weight, 0.02);
}

Tensor Lm::hidden(const Tensor& ids) {
  if (ids.dim() != 2) fail("models", name, ": ids: expected [B, N], got ", ids.sizes());
  Residual x(embeddings_->forward(ids));
  for (const auto& layer : *layers_) {
    recompute_block(x, {}, [layer](Residual& y, const auto&) { layer->forward(y); });
  }
  return x.normed(norm_->norm());
}

Tensor Lm::logits(const Tensor& x) const {
  return head_ ? head_->forward(x) : at::linear(x, embeddings_->weight);
}

Tensor Lm::forward(const Tensor& ids) { return logits(hidden(ids)); }

Tensor Lm::forward(const std::vector<Tensor>& inputs) {
  check_inputs(inputs);
  return forward(inputs[0]);
}

Tensor Lm::step(const Tensor& ids, LmState& state) {
  state.resize(layers_->size());
  Residual x(embeddings_->forward(ids));
  for (std::size_t i = 0; i < layers_->size(); ++i) (*layers_)[i].step(x, state[i]);
  return logits(x.normed(norm_->norm()));
}

std::vector<Tensor> Lm::example_inputs(std::int64_t batch) const {
  return {
      at::randint(config_.vocab, {batch, config_.context}, at::TensorOptions().dtype(at::kLong))};
}

CostSheet Lm::cost() const {
  CostSheet sheet;
  const double n = static_cast<double>(config_.context), dim = static_cast<double>(config_.dim);
  const double hidden = static_cast<double>(config_.intermediate);
  for (const auto& layer : *layers_) {
    sheet.keep("norms", (with_mlp_ ? 2 : 1) * n * dim);
    count_attention(sheet, config_.attention, place_, layer->attention());
    if (!with_mlp_) continue;
    sheet.linear("mlp", n, dim, 2 * hidden);
    sheet.keep("mlp", 2 * n * hidden);  // gate and up; their product is the next one's input
    sheet.linear("mlp", n, hidden, dim);
  }
  sheet.linear("head", n, dim, static_cast<double>(config_.vocab));
  return sheet;
}

}  // namespace mhla::models
