// Names, sizes and printing of dtypes, devices and views.
#include "mhla/tensor_view.h"

#include <algorithm>

#include "mhla/core/arithmetic.h"
#include "mhla/error.h"

namespace mhla {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::f64: return 8;
    case DType::bf16:
    case DType::f16: return 2;
  }
  fail(ErrorCode::internal, "dtype", "value ", static_cast<int>(dtype), " outside the enumeration");
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
  }
  return "unknown";
}

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (text == name(dtype)) return dtype;
  }
  fail("problem", "dtype: expected f32, f64, bf16 or f16, got '", text, "'");
}

std::string to_string(const Device& device) {
  if (device.kind == Device::Kind::cpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

TensorView TensorView::contiguous(void* data, DType dtype,
                                  std::initializer_list<std::int64_t> shape, Device device) {
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    fail("tensor", "rank: at most ", kMaxRank, ", got ", shape.size());
  }
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride = checked_mul("tensor", stride, std::max<std::int64_t>(view.shape[axis], 1));
  }
  return view;
}

void TensorView::set_strides(std::initializer_list<std::int64_t> values) {
  if (values.size() != static_cast<std::size_t>(rank)) {
    fail("tensor", "strides: expected ", rank, " values, got ", values.size());
  }
  std::copy(values.begin(), values.end(), strides.begin());
}

std::int64_t TensorView::size() const {
  std::int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count = checked_mul("tensor", count, shape[axis]);
  return count;
}

std::string TensorView::shape_string() const {
  if (rank > kMaxRank) return "rank " + std::to_string(rank);  // a message is made of this
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) {
    text += (axis ? ", " : "") + std::to_string(shape[axis]);
  }
  return text + "]";
}

}  // namespace mhla
