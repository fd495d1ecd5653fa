// Gated DeltaNet, with the names of flash-linear-attention.
#include "nn/modules/gated_deltanet.h"

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>

#include <cmath>

#include "nn/functional/layers.h"
#include "nn/functional/precision.h"
#include "nn/functional/recurrent.h"
#include "nn/modules/time_step.h"

namespace mhla::nn {
namespace {

using at::Tensor;
namespace f = functional;

const AttentionName kName("gated_deltanet", factory_of<GatedDeltaNet>("gated_deltanet"));

}  // namespace

GatedDeltaNet::GatedDeltaNet(const Config& config) : config_(config) {
  const std::int64_t dim = config.dim, heads = config.heads;
  if (config_.head_dim == 0) {
    check_heads("gated_deltanet", 3 * dim, 4 * heads);
    config_.head_dim = 3 * dim / (4 * heads);
  }
  const std::int64_t dim_k = heads * config_.head_dim;
  const std::int64_t head_v = std::llround(static_cast<double>(config_.head_dim) * config.expand_v);
  const std::int64_t dim_v = heads * head_v;
  check_heads("gated_deltanet", dim_v, heads);
  q_proj_ = register_module("q_proj", make_linear(dim, dim_k, false));
  k_proj_ = register_module("k_proj", make_linear(dim, dim_k, false));
  v_proj_ = register_module("v_proj", make_linear(dim, dim_v, false));
  a_proj_ = register_module("a_proj", make_linear(dim, heads, false));
  b_proj_ = register_module("b_proj", make_linear(dim, heads, false));
  A_log_ = register_parameter("A_log", initial_decay_log(heads, 0.0));
  dt_bias_ = register_parameter("dt_bias", initial_step_bias(heads));
  const std::int64_t size = config.conv_size;
  q_conv1d_ = register_module("q_conv1d", make_short_convolution(dim_k, size, false));
  k_conv1d_ = register_module("k_conv1d", make_short_convolution(dim_k, size, false));
  v_conv1d_ = register_module("v_conv1d", make_short_convolution(dim_v, size, false));
  g_proj_ = register_module("g_proj", make_linear(dim, dim_v, false));
  o_norm_ = register_module("o_norm", make_rms_norm(head_v));
  o_proj_ = register_module("o_proj", make_linear(dim_v, dim, false));
}

std::pair<Tensor, AttentionState> GatedDeltaNet::step(const Tensor& x,
                                                      const AttentionState& state) {
  AttentionState after;
  const auto convolve = [&](const Linear& project, const Conv1d& convolution) {
    const auto earlier = state.empty() ? std::nullopt : std::optional(state[after.size()]);
    const auto [y, last] = f::short_convolution(project->forward(x), convolution->weight,
                                                std::nullopt, earlier);
    after.push_back(last);
    return split_heads(y, config_.heads);
  };
  const Tensor q = f::unit_norm(convolve(q_proj_, q_conv1d_));
  const Tensor k = f::unit_norm(convolve(k_proj_, k_conv1d_));
  const Tensor v = convolve(v_proj_, v_conv1d_);
  const Tensor beta = at::sigmoid(f::wide(b_proj_->forward(x)));
  const Tensor logits = f::wide(a_proj_->forward(x));
  const Tensor step = at::softplus(logits + dt_bias_.to(logits.scalar_type()));
  const Tensor g = step * A_log_.to(logits.scalar_type()).exp().neg();
  const auto before = state.empty() ? std::nullopt : std::optional(state.back());
  const auto [o, S] = f::gated_delta_rule(q, k, v, g, beta, std::nullopt, before, config_.chunk);
  after.push_back(S);
  const Tensor gate = split_heads(g_proj_->forward(x), config_.heads);
  const Tensor y = f::gated_head_norm(o, gate, o_norm_->weight, config_.norm_eps);
  return {o_proj_->forward(y.flatten(2)), after};
}

}  // namespace mhla::nn
