// Gradients, autocast, and what is refused: double backward and vmap.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "nn/operators.h"

namespace mhla::nn {
namespace {

using at::Tensor;
using ops::Gradients;
using ops::OptionalTensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool wants_gradient(const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); }

class Attention : public torch::autograd::Function<Attention> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& mixing, const OptionalTensor& q_den,
                        const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                        c10::SymIntArrayRef sizes_k, c10::string_view options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensor o = ops::forward(q, k, v, mixing, q_den, k_den, sizes, sizes_k, options);
    context->save_for_backward(
        {q, k, v, mixing, o, q_den.value_or(Tensor()), k_den.value_or(Tensor())});
    context->saved_data["sizes"] = c10::IValue(sizes);
    context->saved_data["sizes_k"] = c10::IValue(sizes_k);
    context->saved_data["options"] = std::string(options);
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    std::array<bool, 6> wanted{};
    // Inputs that were not given have no edge.
    const std::size_t edges = saved[5].defined() ? 6 : 4;
    for (std::size_t i = 0; i < edges; ++i) wanted[i] = context->needs_input_grad(i);
    const auto sizes = context->saved_data["sizes"].toSymIntVector();
    const auto sizes_k = context->saved_data["sizes_k"].toSymIntVector();
    auto [d_q, d_k, d_v, d_mixing, d_q_den, d_k_den] = ops::backward(
        gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], optional(saved[5]),
        optional(saved[6]), sizes, sizes_k, context->saved_data["options"].toStringRef(), wanted);
    const auto given = [&wanted](int i, Tensor& d) { return wanted[i] ? d : Tensor(); };
    return {given(0, d_q),      given(1, d_k),     given(2, d_v),
            given(3, d_mixing), given(4, d_q_den), given(5, d_k_den),
            Tensor(),           Tensor(),          Tensor()};
  }
};

Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mixing,
               const OptionalTensor& q_den, const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
               c10::SymIntArrayRef sizes_k, c10::string_view options) {
  for (const Tensor& tensor : {q, k, v, mixing}) {
    TORCH_CHECK(!tensor._fw_grad(/*level=*/0).defined(),
                "[mhla.attention] forward-mode differentiation is not supported: use backward");
  }
  const bool differentiate = at::GradMode::is_enabled() &&
                             (q.requires_grad() || k.requires_grad() || v.requires_grad() ||
                              mixing.requires_grad() || wants_gradient(q_den) ||
                              wants_gradient(k_den));
  if (differentiate) {
    return Attention::apply(q, k, v, mixing, q_den, k_den, sizes, sizes_k, options);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return ops::forward(q, k, v, mixing, q_den, k_den, sizes, sizes_k, options);
}

// The gradient of the gradient is asked for by a wrapper of its results: it throws when reached.
class Once : public torch::autograd::Function<Once> {
 public:
  static variable_list forward(AutogradContext*, const Tensor& d_o, const Tensor& q,
                               const Tensor& k, const Tensor& v, const Tensor& mixing,
                               const Tensor& o, const OptionalTensor& q_den,
                               const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                               c10::SymIntArrayRef sizes_k, c10::string_view options,
                               std::array<bool, 6> wanted) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [d_q, d_k, d_v, d_mixing, d_q_den, d_k_den] = ops::backward(
        d_o, q, k, v, mixing, o, q_den, k_den, sizes, sizes_k, options, wanted);
    return {d_q, d_k, d_v, d_mixing, d_q_den, d_k_den};
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK(false,
                "[mhla.attention] double backward is not supported: the gradient of the operator's "
                "gradient was asked for (create_graph=True); detach the first gradient");
  }
};

Gradients backward(const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& mixing, const Tensor& o, const OptionalTensor& q_den,
                   const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                   c10::SymIntArrayRef sizes_k, c10::string_view options,
                   std::array<bool, 6> wanted) {
  if (!at::GradMode::is_enabled()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::backward(d_o, q, k, v, mixing, o, q_den, k_den, sizes, sizes_k, options, wanted);
  }
  variable_list d = Once::apply(d_o, q, k, v, mixing, o, q_den, k_den, sizes, sizes_k, options,
                                wanted);
  return {d[0], d[1], d[2], d[3], d[4], d[5]};
}

// Inputs in the type of the region, the mixing matrix in f32.
template <c10::DeviceType kDevice>
Tensor autocast(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mixing,
                const OptionalTensor& q_den, const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                c10::SymIntArrayRef sizes_k, c10::string_view options) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice)));
  const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [type](const Tensor& tensor) {
    return at::autocast::cached_cast(type, tensor, kDevice);
  };
  const auto cast_optional = [&cast](const OptionalTensor& tensor) {
    return tensor ? OptionalTensor(cast(*tensor)) : std::nullopt;
  };
  return ops::forward(cast(q), cast(k), cast(v),
                      at::autocast::cached_cast(at::kFloat, mixing, kDevice), cast_optional(q_den),
                      cast_optional(k_den), sizes, sizes_k, options);
}

void refuse_vmap(const c10::OperatorHandle&, torch::jit::Stack*) {
  TORCH_CHECK(false,
              "[mhla.attention] vmap is not supported: give the batch as the first dimension of "
              "q, k and v instead");
}

}  // namespace
}  // namespace mhla::nn

TORCH_LIBRARY_IMPL(mhla, Autograd, m) {
  m.impl("forward", TORCH_FN(mhla::nn::forward));
  m.impl("backward", TORCH_FN(mhla::nn::backward));
}
TORCH_LIBRARY_IMPL(mhla, AutocastCPU, m) {
  m.impl("forward", TORCH_FN(mhla::nn::autocast<at::kCPU>));
}
TORCH_LIBRARY_IMPL(mhla, AutocastCUDA, m) {
  m.impl("forward", TORCH_FN(mhla::nn::autocast<at::kCUDA>));
}
TORCH_LIBRARY_IMPL(mhla, FuncTorchBatched, m) {
  m.impl("forward", torch::CppFunction::makeFromBoxedFunction<&mhla::nn::refuse_vmap>());
  m.impl("backward", torch::CppFunction::makeFromBoxedFunction<&mhla::nn::refuse_vmap>());
}
