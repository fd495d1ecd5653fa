// How weights start. Every function leaves meta tensors alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

namespace mhla::models::init {

// Normal around 0, redrawn outside of +-2 (not of +-2 std: timm's default).
void trunc_normal(const at::Tensor& tensor, double std);
void normal(const at::Tensor& tensor, double std);
// Uniform; a convolution counts as the linear map of its patches.
void xavier(const at::Tensor& tensor, double gain = 1.0);
// PyTorch's own start of a linear layer or a convolution.
void torch_default(const at::Tensor& weight, const at::Tensor& bias);
void constant(const at::Tensor& tensor, double value);
// A depthwise convolution that returns its input.
void identity_kernel(const at::Tensor& weight, const at::Tensor& bias);

// visit(Layer&, name) for every layer of this kind.
template <typename Layer, typename Visit>
void each(torch::nn::Module& root, Visit visit) {
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (auto* layer = dynamic_cast<Layer*>(item.value().get())) visit(*layer, item.key());
  }
}

}  // namespace mhla::models::init
