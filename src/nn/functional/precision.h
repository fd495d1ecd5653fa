// In which precision a function computes: f32 for 16-bit inputs, the type of the inputs otherwise.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace mhla::nn::functional {

inline at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline at::Tensor wide(const at::Tensor& x) { return x.to(wide_type(x)); }

// While it lives, autocast does not narrow the products of a function that asked for f32.
class WideProducts {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace mhla::nn::functional
