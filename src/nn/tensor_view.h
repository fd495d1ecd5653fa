// LibTorch tensors as the views that libmhla takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "mhla/tensor_view.h"

namespace mhla::nn {

mhla::DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(mhla::DType type);
mhla::Device device_of(const at::Device& device);
// Shares the memory; an undefined tensor gives an empty view.
mhla::TensorView view_of(const at::Tensor& tensor);

}  // namespace mhla::nn
