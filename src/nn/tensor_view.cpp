#include "nn/tensor_view.h"

#include <algorithm>

#include "mhla/error.h"

namespace mhla::nn {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    default:
      fail(ErrorCode::unsupported, "attention",
           "dtype: expected float32, float64, bfloat16 or float16, got ", c10::toString(type));
  }
}

at::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::f32: return at::kFloat;
    case DType::f64: return at::kDouble;
    case DType::bf16: return at::kBFloat16;
    case DType::f16: return at::kHalf;
  }
  fail("attention", "dtype: unknown value ", static_cast<int>(type));
}

Device device_of(const at::Device& device) {
  if (device.is_cpu()) return Device::cpu();
  if (device.is_cuda()) return Device::cuda(device.has_index() ? device.index() : 0);
  fail(ErrorCode::unsupported, "attention", "device: expected cpu or cuda, got ", device.str());
}

TensorView view_of(const at::Tensor& tensor) {
  TensorView view;
  if (!tensor.defined()) return view;
  if (tensor.dim() > TensorView::kMaxRank) {
    fail("attention", "expected at most ", TensorView::kMaxRank, " dimensions, got ", tensor.dim());
  }
  view.data = tensor.data_ptr();
  view.dtype = dtype_of(tensor.scalar_type());
  view.device = device_of(tensor.device());
  view.rank = static_cast<int>(tensor.dim());
  std::ranges::copy(tensor.sizes(), view.shape.begin());
  std::ranges::copy(tensor.strides(), view.strides.begin());
  return view;
}

}  // namespace mhla::nn
