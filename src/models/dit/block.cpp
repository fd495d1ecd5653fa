// One block of DiT and DiG.
#include <ATen/ops/silu.h>

#include <cmath>

#include "models/dit/dit.h"
#include "models/layers/init.h"
#include "nn/functional/layers.h"

namespace mhla::models {
namespace {

using at::Tensor;

// flash-linear-attention: 8/3 of the width, rounded up to 256
std::int64_t swiglu_hidden(std::int64_t width) {
  const std::int64_t hidden = width * 8 / 3;
  return (hidden + 255) / 256 * 256;
}

}  // namespace

FusedSwiGlu::FusedSwiGlu(std::int64_t width, std::int64_t hidden)
    : gate_proj_(register_module("gate_proj", make_linear(width, 2 * hidden, false))),
      down_proj_(register_module("down_proj", make_linear(hidden, width, false))) {}

Tensor FusedSwiGlu::forward(const Tensor& x) const {
  const auto halves = gate_proj_->forward(x).chunk(2, -1);
  return down_proj_->forward(at::silu(halves[0]) * halves[1]);
}

DitBlock::DitBlock(const DitConfig& config, const Place& place, const std::string& options)
    : norm_(std::make_shared<LayerNormLayer>(config.dim, 1e-6, /*affine=*/false)) {
  attn_ = register_module("attn", make_attention(config.attention, place, options));
  if (config.mlp == "swiglu") {
    glu_ = register_module("mlp",
                           std::make_shared<FusedSwiGlu>(config.dim, swiglu_hidden(config.dim)));
  } else if (config.mlp == "gelu") {
    const auto hidden = std::llround(static_cast<double>(config.dim) * config.mlp_ratio);
    mlp_ = register_module("mlp",
                           std::make_shared<MlpLayer>(config.dim, hidden, config.dim, Gelu::tanh));
  } else {
    fail("models", "mlp: expected gelu or swiglu, got '", config.mlp, "'");
  }
  modulation_ = register_module("adaLN_modulation", std::make_shared<Modulation>(config.dim, 6));
  if (config.dwconv) dw_conv_ = register_module("dw_conv", make_depthwise(config.dim, 3));
}

void DitBlock::reset() {
  init::constant(modulation_->linear()->weight, 0.0);
  init::constant(modulation_->linear()->bias, 0.0);
  if (dw_conv_) init::identity_kernel(dw_conv_->weight, dw_conv_->bias);
}

void DitBlock::forward(Residual& x, const Tensor& c) {
  const auto m = modulation_->forward(c).chunk(6, 1);  // shift, scale, gate: attention, then MLP
  x.add(x.attended(*attn_, norm_->norm(), m[0], m[1]), m[2]);
  const Tensor y = x.normed(norm_->norm(), m[3], m[4]);
  x.add(glu_ ? glu_->forward(y) : mlp_->forward(y), m[5]);
}

Tensor DitBlock::convolved(const Tensor& x, at::IntArrayRef grid) const {
  return nn::functional::grid_convolution(x.unsqueeze(2), grid, dw_conv_->weight, dw_conv_->bias)
      .squeeze(2);
}

}  // namespace mhla::models
