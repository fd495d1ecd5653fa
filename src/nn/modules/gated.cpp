// Causal linear attention, RetNet, GLA and simple GLA.
#include "nn/modules/gated.h"

#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "nn/functional/layers.h"
#include "nn/functional/precision.h"
#include "nn/functional/recurrent.h"

namespace mhla::nn {
namespace {

using at::Tensor;
using Result = std::pair<Tensor, AttentionState>;
namespace f = functional;

const AttentionName kRetNet("retnet", factory_of<Retention>("retnet"));
const AttentionName kGla("gla", factory_of<GatedLinearAttention>("gla"));
const AttentionName kSimpleGla("simple_gla", factory_of<SimpleGatedLinearAttention>("simple_gla"));

std::optional<Tensor> before(const AttentionState& state) {
  return state.empty() ? std::nullopt : std::optional<Tensor>(state[0]);
}

// The position is a tensor, so that a step needs no synchronisation.
std::optional<Tensor> position(const AttentionState& state) {
  return state.empty() ? std::nullopt : std::optional<Tensor>(state[1]);
}

Tensor position_after(const GatedInputs& in) {
  const Tensor start = in.state.empty() ? at::zeros({}, in.x.options().dtype(at::kLong))
                                        : in.state[1];
  return start + in.x.size(1);
}

std::int64_t width(const char* which, std::int64_t dim, double given, double own) {
  const double exact = static_cast<double>(dim) * (given > 0 ? given : own);
  if (exact == std::round(exact)) return static_cast<std::int64_t>(exact);
  fail("attention", which, ": ", dim, " times this is ", exact, ", not a whole width");
}

}  // namespace

GatedAttention::GatedAttention(const Config& config, double expand_k, double expand_v)
    : config_(config),
      dim_k_(width("expand_k", config.dim, config.expand_k, expand_k)),
      dim_v_(width("expand_v", config.dim, config.expand_v, expand_v)) {
  check_heads("k", dim_k_, config.heads);
  check_heads("v", dim_v_, config.heads);
  q_proj_ = register_module("q_proj", make_linear(config.dim, dim_k_, false));
  k_proj_ = register_module("k_proj", make_linear(config.dim, dim_k_, false));
  v_proj_ = register_module("v_proj", make_linear(config.dim, dim_v_, false));
  g_proj_ = register_module("g_proj", make_linear(config.dim, dim_v_, false));
  o_proj_ = register_module("o_proj", make_linear(dim_v_, config.dim, false));
  g_norm_ = register_module("g_norm_swish_gate", make_rms_norm(dim_v_ / config.heads));
}

Result GatedAttention::step(const Tensor& x, const AttentionState& state) {
  const std::int64_t heads = config_.heads;
  auto [o, after] = recur({.q = split_heads(q_proj_->forward(x), heads),
                           .k = split_heads(k_proj_->forward(x), heads),
                           .v = split_heads(v_proj_->forward(x), heads),
                           .x = x,
                           .state = state});
  const Tensor gate = split_heads(g_proj_->forward(x), heads);
  const Tensor y = f::gated_head_norm(o, gate, g_norm_->weight, config_.norm_eps);
  return {o_proj_->forward(y.flatten(2)), std::move(after)};
}

Result CausalLinearAttention::recur(const GatedInputs& in) {
  const auto start = position(in.state);
  const Tensor q = f::rotary(at::relu(in.q), 10000.0, start);
  const Tensor k = f::rotary(at::relu(in.k), 10000.0, start);
  const auto [o, after] = f::causal_linear_attention(q, k, in.v, std::nullopt, before(in.state),
                                                     config().chunk);
  return {o, {after, position_after(in)}};
}

Result Retention::recur(const GatedInputs& in) {
  const auto start = position(in.state);
  const Tensor q = f::rotary(in.q, 10000.0, start), k = f::rotary(in.k, 10000.0, start);
  const auto [o, after] = f::retention(q, k, in.v, std::nullopt, before(in.state), config().chunk);
  return {o, {after, position_after(in)}};
}

GatedLinearAttention::GatedLinearAttention(const Config& config)
    : GatedAttention(config, 0.5, 1.0) {
  const auto gk = register_module("gk_proj", std::make_shared<torch::nn::Module>());
  gk_proj0_ = gk->register_module("0", make_linear(config.dim, config.gate_rank, false));
  gk_proj1_ = gk->register_module("1", make_linear(config.gate_rank, dim_k(), true));
}

Result GatedLinearAttention::recur(const GatedInputs& in) {
  const Tensor logits = split_heads(gk_proj1_->forward(gk_proj0_->forward(in.x)), config().heads);
  const Tensor g = at::log_sigmoid(f::wide(logits)) / config().gate_normalizer;
  const auto [o, after] = f::gla(in.q, in.k, in.v, g, std::nullopt, before(in.state),
                                 config().chunk);
  return {o, {after}};
}

SimpleGatedLinearAttention::SimpleGatedLinearAttention(const Config& config)
    : GatedAttention(config, 1.0, 1.0),
      gk_proj_(register_module("gk_proj", make_linear(config.dim, config.heads, true))) {}

Result SimpleGatedLinearAttention::recur(const GatedInputs& in) {
  const Tensor g = at::log_sigmoid(f::wide(gk_proj_->forward(in.x))) / config().gate_normalizer;
  const auto [o, after] = f::simple_gla(in.q, in.k, in.v, g, std::nullopt, before(in.state),
                                        config().chunk);
  return {o, {after}};
}

}  // namespace mhla::nn
