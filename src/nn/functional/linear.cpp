#include "nn/functional/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "nn/functional/token_maps.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kRowsOfOneSum = 64;

Tensor sum_of_rows(const Tensor& x, at::ScalarType type) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  if (rows % kRowsOfOneSum != 0 || x.scalar_type() == at::kDouble) return x.sum(0).to(type);
  const Tensor parts = x.view({rows / kRowsOfOneSum, kRowsOfOneSum, width})
                           .sum(1, false, at::kFloat);
  return parts.sum(0).to(type);
}

// a^T b of 16-bit rows for a parameter of `type`: the sums are f32 already.
Tensor product_of_rows(const Tensor& a, const Tensor& b, at::ScalarType type) {
  if (type == at::kFloat && a.scalar_type() != type) return at::mm(a.t(), b, type);
  return at::mm(a.t(), b).to(type);
}

class Projection : public torch::autograd::Function<Projection> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, at::ScalarType type) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const Tensor rows = x.to(type), matrix = weight.to(type);
    context->save_for_backward({rows, matrix});
    context->saved_data["x"] = x.scalar_type();
    context->saved_data["weight"] = weight.scalar_type();
    context->saved_data["bias"] = bias.scalar_type();
    return at::linear(rows, matrix, bias.to(type));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const auto type_of = [&](const char* name) { return context->saved_data[name].toScalarType(); };
    const auto flat = [](const Tensor& t) { return t.reshape({-1, t.size(-1)}); };
    const Tensor d_rows = flat(gradients[0].contiguous());
    variable_list results(4);  // as many as forward has arguments
    if (context->needs_input_grad(0)) {
      results[0] = at::mm(d_rows, saved[1]).view(saved[0].sizes()).to(type_of("x"));
    }
    if (context->needs_input_grad(1)) {
      results[1] = product_of_rows(d_rows, flat(saved[0]), type_of("weight"));
    }
    if (context->needs_input_grad(2)) results[2] = sum_of_rows(d_rows, type_of("bias"));
    return results;
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const bool narrowed = at::autocast::is_autocast_enabled(at::kCUDA);
  const bool many = bias.defined() && is_plain_cuda(x) && is_plain_cuda(weight) && x.dim() > 1 &&
                    x.numel() > 0 && at::GradMode::is_enabled() && bias.requires_grad();
  if (!many || (!narrowed && x.scalar_type() != weight.scalar_type())) {
    return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  const bool wide = x.scalar_type() == at::kDouble;
  const at::ScalarType type = narrowed && !wide ? at::autocast::get_autocast_dtype(at::kCUDA)
                                                : x.scalar_type();
  return Projection::apply(x, weight, bias, type);
}

}  // namespace mhla::nn::functional
