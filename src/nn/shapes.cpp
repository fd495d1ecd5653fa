// Meta kernels: what a call returns, without computing it.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "nn/operators.h"

namespace mhla::nn {
namespace {

using ops::Gradients;
using ops::OptionalTensor;

at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mixing, const OptionalTensor&, const OptionalTensor&,
                   c10::SymIntArrayRef, c10::SymIntArrayRef, c10::string_view) {
  for (const auto* tensor : {&k, &v, &mixing}) {
    TORCH_CHECK(tensor->device() == q.device(), "[mhla.attention] tensors are on ",
                tensor->device(), " and on ", q.device());
  }
  for (const auto* tensor : {&q, &k, &v}) {
    TORCH_CHECK(tensor->dim() == 4, "[mhla.attention] q, k, v: expected [B, N, H, D], got ",
                tensor->sym_sizes());
  }
  TORCH_CHECK(mixing.dim() == 2 || mixing.dim() == 3,
              "[mhla.attention] mixing: expected [Mq, Mk] or [H, Mq, Mk], got ",
              mixing.sym_sizes());
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
                          q.options());
}

Gradients backward(const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mixing, const at::Tensor&, const OptionalTensor& q_den,
                   const OptionalTensor& k_den, c10::SymIntArrayRef, c10::SymIntArrayRef,
                   c10::string_view, std::array<bool, 6> wanted) {
  const auto gradient = [&](int index, const OptionalTensor& of) {
    return wanted[index] && of ? at::empty_symint(of->sym_sizes(), of->options()) : at::Tensor();
  };
  return {gradient(0, q),      gradient(1, k),     gradient(2, v),
          gradient(3, mixing), gradient(4, q_den), gradient(5, k_den)};
}

}  // namespace
}  // namespace mhla::nn

TORCH_LIBRARY_IMPL(mhla, Meta, m) {
  m.impl("forward", TORCH_FN(mhla::nn::forward));
  m.impl("backward", TORCH_FN(mhla::nn::backward));
}
