// A projection whose gradients are quick over many rows.
#pragma once

#include <ATen/core/Tensor.h>

namespace mhla::nn::functional {

// x weight^T + bias, as at::linear; bias: undefined without.
// On a GPU the gradients of f32 parameters come as f32 out of their products, and that of the bias
// is summed in two steps: LibTorch's own sum of 65,536 bf16 rows took a quarter of a training step.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace mhla::nn::functional
