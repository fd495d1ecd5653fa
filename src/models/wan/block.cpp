// One block of Wan.
#include <cmath>

#include "models/layers/init.h"
#include "models/wan/wan.h"
#include "nn/functional/bidirectional.h"

namespace mhla::models {

using at::Tensor;

WanCrossAttention::WanCrossAttention(std::int64_t dim, std::int64_t heads)
    : heads_(heads),
      q_(register_module("q", make_linear(dim, dim, true))),
      k_(register_module("k", make_linear(dim, dim, true))),
      v_(register_module("v", make_linear(dim, dim, true))),
      o_(register_module("o", make_linear(dim, dim, true))),
      norm_q_(register_module("norm_q", nn::make_rms_norm(dim, 1e-6))),
      norm_k_(register_module("norm_k", nn::make_rms_norm(dim, 1e-6))) {}

Tensor WanCrossAttention::forward(const Tensor& x, const Tensor& given) const {
  // Its two gradients are summed here, before they join those of other blocks: the same order, and
  // so the same bits, whether blocks are recomputed or not.
  const Tensor text = given.view_as(given);
  const Tensor q = nn::split_heads(norm_q_->forward(q_->forward(x)), heads_);
  const Tensor k = nn::split_heads(norm_k_->forward(k_->forward(text)), heads_);
  const Tensor v = nn::split_heads(v_->forward(text), heads_);
  return o_->forward(nn::functional::softmax_attention(q, k, v).flatten(2));
}

WanBlock::WanBlock(const WanConfig& config, const std::string& attention, const Place& place,
                   const std::string& options)
    : kind(attention), norm_(std::make_shared<LayerNormLayer>(config.dim, 1e-6, false)) {
  const std::int64_t dim = config.dim;
  self_attn_ = register_module("self_attn", make_attention(attention, place, options));
  norm3_ = register_module("norm3", std::make_shared<LayerNormLayer>(dim, 1e-6, true));
  cross_attn_ = register_module("cross_attn",
                                std::make_shared<WanCrossAttention>(dim, config.heads));
  const auto ffn = register_module("ffn", std::make_shared<torch::nn::Module>());
  ffn0_ = ffn->register_module("0", make_linear(dim, config.ffn, true));
  ffn2_ = ffn->register_module("2", make_linear(config.ffn, dim, true));
  modulation_ = register_parameter("modulation", new_parameter({1, 6, dim}));
}

void WanBlock::set_grid(const std::vector<std::int64_t>& grid) {
  // Layers for pictures read a video as one tall picture, as they were made.
  const bool picture = kind == "focused" || kind == "inline" || kind == "rala" || kind == "mala";
  self_attn_->set_grid(picture ? std::vector<std::int64_t>{grid[0] * grid[1], grid[2]} : grid);
}

void WanBlock::reset() {
  init::normal(modulation_, 1.0 / std::sqrt(static_cast<double>(modulation_.size(2))));
}

void WanBlock::forward(Residual& x, const Tensor& e, const Tensor& text) {
  // f32, then rounded once
  const auto m = (modulation_.to(e.scalar_type()) + e).to(text.scalar_type()).unbind(1);
  x.add(x.attended(*self_attn_, norm_->norm(), m[0], m[1]), m[2]);
  x.add(cross_attn_->forward(x.normed(norm3_->norm()), text));
  const Tensor y = linear_gelu(ffn0_, x.normed(norm_->norm(), m[3], m[4]), Gelu::tanh);
  x.add(ffn2_->forward(y), m[5]);
}

}  // namespace mhla::models
