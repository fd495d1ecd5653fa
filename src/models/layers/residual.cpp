#include "models/layers/residual.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>

#include "models/layers/basic.h"
#include "nn/functional/token_maps.h"

namespace mhla::models {

using at::Tensor;

void Residual::add(const Tensor& branch, const Tensor& gate) {
  value();
  branch_ = branch, gate_ = gate;
}

void Residual::add_or_drop(const Tensor& branch, double rate, bool training) {
  if (!training || rate == 0.0) return add(branch);
  if (!nn::functional::is_plain_cuda(branch)) return add(drop_path(branch, rate, training));
  // As the gate of the sum it costs no pass of its own, neither forward nor backward.
  const double keep = 1.0 - rate;
  const Tensor kept = at::empty({branch.size(0), 1}, branch.options()).bernoulli_(keep);
  add(branch, kept.expand({branch.size(0), branch.size(-1)}).div(keep).contiguous());
}

Tensor Residual::normed(const nn::functional::Norm& norm, const Tensor& shift, const Tensor& scale,
                        const std::optional<nn::functional::Norm>& then) {
  auto [sum, normed] = nn::functional::residual_norm(
      {.x = x_, .branch = branch_, .gate = gate_, .shift = shift, .scale = scale, .then = then},
      norm);
  x_ = std::move(sum);
  branch_ = gate_ = Tensor();
  return normed;
}

Tensor Residual::attended(nn::Attention& layer, const nn::functional::Norm& norm,
                          const Tensor& shift, const Tensor& scale) {
  return layer.forward_normed(normed(norm, shift, scale, layer.input_norm()));
}

const Tensor& Residual::value() {
  if (branch_.defined()) {
    x_ = gate_.defined() ? at::addcmul(x_, branch_, gate_.unsqueeze(1)) : x_ + branch_;
  }
  branch_ = gate_ = Tensor();
  return x_;
}

}  // namespace mhla::models
