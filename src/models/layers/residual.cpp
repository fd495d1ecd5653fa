#include "models/layers/residual.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>

namespace mhla::models {

using at::Tensor;

void Residual::add(const Tensor& branch, const Tensor& gate) {
  value();
  branch_ = branch, gate_ = gate;
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
