// For pytest: builds a C++ attention layer by name and runs it with the parameters of a Python one.
#include <torch/library.h>

#include "mhla/error.h"
#include "nn/modules/attention.h"

namespace {

using at::Tensor;
using mhla::nn::Attention;

std::shared_ptr<Attention> make(c10::string_view name, c10::string_view options) {
  return mhla::nn::make_attention(std::string(name),
                                  std::string_view(options.data(), options.size()));
}

std::shared_ptr<Attention> make_with(c10::string_view name, c10::string_view options,
                                     const std::vector<std::string>& names, at::TensorList values) {
  const auto layer = make(name, options);
  layer->to(values[0].scalar_type());
  auto parameters = layer->named_parameters();
  if (parameters.size() != names.size()) {
    mhla::fail("test", "expected ", parameters.size(), " parameters, got ", names.size());
  }
  const at::NoGradGuard no_gradient;
  for (std::size_t i = 0; i < names.size(); ++i) parameters[names[i]].copy_(values[i]);
  return layer;
}

Tensor run_module(c10::string_view name, c10::string_view options, std::vector<std::string> names,
                  at::TensorList values, const Tensor& x) {
  return make_with(name, options, names, values)->forward(x);
}

// Gradients of sum(output * weight): those of the parameters in the order of `names`, then of x.
std::vector<Tensor> module_gradients(c10::string_view name, c10::string_view options,
                                     std::vector<std::string> names, at::TensorList values,
                                     const Tensor& x, const Tensor& weight) {
  const at::AutoGradMode gradients(true);
  const auto layer = make_with(name, options, names, values);
  const Tensor input = x.detach().clone().requires_grad_();
  (layer->forward(input) * weight).sum().backward();
  std::vector<Tensor> result;
  auto parameters = layer->named_parameters();
  for (const std::string& each : names) result.push_back(parameters[each].grad());
  result.push_back(input.grad());
  return result;
}

Tensor step_module(c10::string_view name, c10::string_view options, std::vector<std::string> names,
                   at::TensorList values, at::TensorList pieces) {
  const auto layer = make_with(name, options, names, values);
  mhla::nn::AttentionState state;
  std::vector<Tensor> outputs;
  for (const Tensor& piece : pieces) {
    auto [y, after] = layer->step(piece, state);
    outputs.push_back(y);
    state = std::move(after);
  }
  return at::cat(outputs, 1);
}

std::vector<std::string> parameter_names(c10::string_view name, c10::string_view options) {
  return make(name, options)->named_parameters().keys();
}

std::vector<Tensor> initial_parameters(c10::string_view name, c10::string_view options) {
  std::vector<Tensor> values;
  for (const Tensor& value : make(name, options)->parameters()) values.push_back(value.detach());
  return values;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mhla_test, m) {
  m.def("run_module(str name, str options, str[] names, Tensor[] values, Tensor x) -> Tensor",
        &run_module);
  m.def(
      "module_gradients(str name, str options, str[] names, Tensor[] values, Tensor x, "
      "Tensor weight) -> Tensor[]",
      &module_gradients);
  m.def(
      "step_module(str name, str options, str[] names, Tensor[] values, Tensor[] pieces) -> Tensor",
      &step_module);
  m.def("parameter_names(str name, str options) -> str[]", &parameter_names);
  m.def("initial_parameters(str name, str options) -> Tensor[]", &initial_parameters);
  m.def("attention_names() -> str[]", &mhla::nn::attention_names);
}
