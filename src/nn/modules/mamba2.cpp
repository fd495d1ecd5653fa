// Mamba2 (SSD).
#include "nn/modules/mamba2.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/softplus.h>

#include "nn/functional/layers.h"
#include "nn/functional/precision.h"
#include "nn/functional/recurrent.h"
#include "nn/modules/time_step.h"

namespace mhla::nn {
namespace {

using at::Tensor;
namespace f = functional;

constexpr std::int64_t kHeadSize = 64;

const AttentionName kName("mamba2", factory_of<Mamba2>("mamba2"));

}  // namespace

Mamba2::Mamba2(const Config& config) : config_(config), inner_(config.expand * config.dim) {
  if (config_.heads == 0) config_.heads = inner_ / kHeadSize;
  const std::int64_t heads = config_.heads;
  check_heads("mamba2", inner_, heads);
  check_heads("mamba2", heads, config.groups);
  const std::int64_t convolved = inner_ + 2 * config.groups * config.state_size;
  in_proj_ = register_module("in_proj", make_linear(config.dim, inner_ + convolved + heads, false));
  conv1d_ = register_module("conv1d", make_short_convolution(convolved, config.conv_size, true));
  dt_bias_ = register_parameter("dt_bias", initial_step_bias(heads));
  A_log_ = register_parameter("A_log", initial_decay_log(heads, 1.0));
  D_ = register_parameter("D", at::ones({heads}));
  norm_ = register_module("norm", make_rms_norm(inner_));
  out_proj_ = register_module("out_proj", make_linear(inner_, config.dim, false));
}

std::pair<Tensor, AttentionState> Mamba2::step(const Tensor& x, const AttentionState& state) {
  const auto earlier = [&](std::size_t i) {
    return state.empty() ? std::nullopt : std::optional(state[i]);
  };
  const std::int64_t heads = config_.heads, keys = config_.groups * config_.state_size;
  const std::vector<Tensor> parts = in_proj_->forward(x).split_with_sizes(
      {inner_, inner_ + 2 * keys, heads}, -1);
  const auto [xbc, last] = f::short_convolution(parts[1], conv1d_->weight, conv1d_->bias,
                                                earlier(0));
  const std::vector<Tensor> inputs = xbc.split_with_sizes({inner_, keys, keys}, -1);
  const Tensor logits = f::wide(parts[2]);
  const Tensor dt = at::softplus(logits + dt_bias_.to(logits.scalar_type()));
  const auto [y, h] = f::ssd(split_heads(inputs[0], heads), dt,
                             A_log_.to(logits.scalar_type()).exp().neg(),
                             split_heads(inputs[1], config_.groups),
                             split_heads(inputs[2], config_.groups), D_, earlier(1), config_.chunk);
  const Tensor normed = f::gate_then_norm(y.flatten(2), parts[0], norm_->weight, config_.norm_eps);
  return {out_proj_->forward(normed), {last, h}};
}

}  // namespace mhla::nn
