// Schemas, and the calls that go through the dispatcher.
#include "nn/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace mhla::nn::ops {

at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mixing, const OptionalTensor& q_den,
                   const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                   c10::SymIntArrayRef sizes_k, c10::string_view options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mhla::forward", "")
                             .typed<decltype(forward)>();
  return op.call(q, k, v, mixing, q_den, k_den, sizes, sizes_k, options);
}

Gradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& mixing, const at::Tensor& o,
                   const OptionalTensor& q_den, const OptionalTensor& k_den,
                   c10::SymIntArrayRef sizes, c10::SymIntArrayRef sizes_k, c10::string_view options,
                   std::array<bool, 6> wanted) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mhla::backward", "")
                             .typed<decltype(backward)>();
  return op.call(d_o, q, k, v, mixing, o, q_den, k_den, sizes, sizes_k, options, wanted);
}

}  // namespace mhla::nn::ops

TORCH_LIBRARY(mhla, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def(
      "forward(Tensor q, Tensor k, Tensor v, Tensor mixing, Tensor? q_den, Tensor? k_den, "
      "SymInt[] sizes, SymInt[] sizes_k, str options) -> Tensor",
      tags);
  m.def(
      "backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor mixing, Tensor o, Tensor? q_den, "
      "Tensor? k_den, SymInt[] sizes, SymInt[] sizes_k, str options, bool[6] wanted) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
      tags);
  m.def(
      "explain(Tensor q, Tensor k, Tensor v, Tensor mixing, Tensor? q_den, Tensor? k_den, "
      "int[] sizes, int[] sizes_k, str options) -> str");
  m.def("version() -> str");
  m.def("block_index(str layout) -> Tensor");
  m.def("initial_mixing(str layout, str how) -> Tensor");
  m.def(
      "resample_mixing(Tensor mixing, str layout_from, str layout_to, bool causal, "
      "bool keep_row_sums) -> Tensor");
  m.def("constrain_mixing_(Tensor(a!) mixing, float low, float high, bool renormalize_rows) -> ()");
}
