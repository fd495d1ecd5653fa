// RALA, MALA and softmax attention in the VLT backbone.
#include "nn/modules/gated_grid.h"

#include "nn/functional/bidirectional.h"
#include "nn/functional/layers.h"
#include "nn/functional/precision.h"

namespace mhla::nn {
namespace {

using at::Tensor;
namespace f = functional;

AttentionFactory factory(const std::string& name, GridCore core) {
  return [name, core](std::string_view options) {
    return std::make_shared<GatedGridAttention>(read_config<GatedGridConfig>(name, options), core);
  };
}

const AttentionName kRala("rala", factory("rala", GridCore::rala));
const AttentionName kMala("mala", factory("mala", GridCore::mala));

}  // namespace

GatedGridAttention::GatedGridAttention(const Config& config, GridCore core)
    : heads_(config.heads),
      grid_(config.grid),
      core_(core),
      qkvo_(register_module("qkvo", make_pointwise(config.dim, 4 * config.dim))),
      lepe_(register_module("lepe", make_depthwise(config.dim, 5))),
      proj_(register_module("proj", make_pointwise(config.dim, config.dim))) {
  check_heads("gated grid", config.dim, heads_);
  check_grid("gated grid", grid_, 2);
}

Tensor GatedGridAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
  switch (core_) {
    case GridCore::rala: return f::rala(q, k, v, grid_);
    case GridCore::mala: return f::mala(q, k, v, grid_);
    case GridCore::softmax:
      return f::softmax_attention(f::rotary_grid(q, grid_), f::rotary_grid(k, grid_), v);
  }
  fail(ErrorCode::internal, "attention", "unknown grid core");
}

Tensor GatedGridAttention::forward(const Tensor& x) {
  const std::vector<Tensor> qkvo =
      apply_pointwise(qkvo_, x).unflatten(-1, {4, heads_, -1}).unbind(2);
  const Tensor o = f::grid_convolution(qkvo[2], grid_, lepe_->weight, lepe_->bias,
                                       attend(qkvo[0], qkvo[1], qkvo[2]));
  return apply_pointwise(proj_, (o * qkvo[3]).flatten(2));
}

}  // namespace mhla::nn
