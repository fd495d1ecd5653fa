// Softmax attention in the four places where the paper compares with it.
#include "nn/modules/softmax.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "nn/functional/bidirectional.h"
#include "nn/functional/layers.h"
#include "nn/modules/gated_grid.h"

namespace mhla::nn {
namespace {

using at::Tensor;
namespace f = functional;

std::shared_ptr<Attention> make_softmax(std::string_view options) {
  const auto config = read_config<SoftmaxConfig>("softmax", options);
  if (config.task == "classification" || config.task == "dit") {
    return std::make_shared<SoftmaxAttention>(config);
  }
  if (config.task == "video") return std::make_shared<VideoSoftmaxAttention>(config);
  if (config.task == "language") return std::make_shared<CausalSoftmaxAttention>(config);
  if (config.task == "vlt") {
    return std::make_shared<GatedGridAttention>(
        GatedGridConfig{.dim = config.dim, .heads = config.heads, .grid = config.grid},
        GridCore::softmax);
  }
  fail("attention", "softmax: task: expected classification, dit, video, language or vlt, got '",
       config.task, "'");
}

const AttentionName kName("softmax", make_softmax);

}  // namespace

SoftmaxAttention::SoftmaxAttention(const Config& config)
    : heads_(config.heads),
      qkv_(register_module("qkv", make_linear(config.dim, 3 * config.dim, config.qkv_bias))),
      proj_(register_module("proj", make_linear(config.dim, config.dim, true))) {
  check_heads("softmax", config.dim, heads_);
}

Tensor SoftmaxAttention::forward(const Tensor& x) {
  const std::vector<Tensor> qkv = qkv_->forward(x).unflatten(-1, {3, heads_, -1}).unbind(2);
  return proj_->forward(f::softmax_attention(qkv[0], qkv[1], qkv[2]).flatten(2));
}

VideoSoftmaxAttention::VideoSoftmaxAttention(const Config& config)
    : heads_(config.heads),
      grid_(config.grid),
      q_(register_module("q", make_linear(config.dim, config.dim, true))),
      k_(register_module("k", make_linear(config.dim, config.dim, true))),
      v_(register_module("v", make_linear(config.dim, config.dim, true))),
      o_(register_module("o", make_linear(config.dim, config.dim, true))),
      norm_q_(register_module("norm_q", make_rms_norm(config.dim, 1e-6))),
      norm_k_(register_module("norm_k", make_rms_norm(config.dim, 1e-6))) {
  check_heads("softmax", config.dim, heads_);
  check_grid("softmax", grid_, 3);
}

Tensor VideoSoftmaxAttention::forward(const Tensor& x) {
  const f::HeadTurn turn{.heads = heads_, .grid = grid_};
  const Tensor q = f::normed_and_turned(q_->forward(x), norm_q_->norm(), turn).turned;
  const Tensor k = f::normed_and_turned(k_->forward(x), norm_k_->norm(), turn).turned;
  const Tensor o = f::softmax_attention(q, k, split_heads(v_->forward(x), heads_));
  return o_->forward(o.flatten(2));
}

CausalSoftmaxAttention::CausalSoftmaxAttention(const Config& config)
    : heads_(config.heads),
      q_proj_(register_module("q_proj", make_linear(config.dim, config.dim, false))),
      k_proj_(register_module("k_proj", make_linear(config.dim, config.dim, false))),
      v_proj_(register_module("v_proj", make_linear(config.dim, config.dim, false))),
      o_proj_(register_module("o_proj", make_linear(config.dim, config.dim, false))) {
  check_heads("softmax", config.dim, heads_);
}

std::pair<Tensor, AttentionState> CausalSoftmaxAttention::step(const Tensor& x,
                                                               const AttentionState& state) {
  std::optional<Tensor> position;
  if (!state.empty()) {
    position = at::full({}, state[0].size(1), x.options().dtype(at::kLong));
  }
  const Tensor q = f::rotary(split_heads(q_proj_->forward(x), heads_), 10000.0, position);
  Tensor k = f::rotary(split_heads(k_proj_->forward(x), heads_), 10000.0, position);
  Tensor v = split_heads(v_proj_->forward(x), heads_);
  if (!state.empty()) {
    k = at::cat({state[0], k}, 1);
    v = at::cat({state[1], v}, 1);
  }
  const Tensor o = f::softmax_attention(q, k, v, /*causal=*/true);
  return {o_proj_->forward(o.flatten(2)), {k, v}};
}

}  // namespace mhla::nn
