// What focused linear attention makes of queries and keys: one kernel on a GPU, with gradients.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softplus.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mhla/norms.h"
#include "nn/functional/norms.h"
#include "nn/functional/precision.h"
#include "nn/functional/token_maps.h"
#include "nn/once.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Focus describe(const Tensor& x, const Tensor& factor, const Tensor& out, double power) {
  return {.x = view_of(x), .out = view_of(out), .factor = view_of(factor), .power = power};
}

Tensor new_rows(const Tensor& like) { return at::empty(like.sizes(), like.options()); }

class Focusing : public torch::autograd::Function<Focusing> {
 public:
  // x [B, N, C], factor [C]
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& factor,
                        double power) {
    const Tensor out = new_rows(x);
    focus(describe(x, factor, out, power), current_stream(x.device()));
    context->save_for_backward({x, factor});
    context->saved_data["power"] = power;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &factor = saved[1];
    const Tensor d_out = aligned(gradients[0].to(x.scalar_type())), d_x = new_rows(x);
    Tensor sums;
    if (context->needs_input_grad(1)) {
      sums = at::empty({focus_parts(x.size(0) * x.size(1)), x.size(2)}, factor.options());
    }
    focus_backward({.x = view_of(x),
                    .d_out = view_of(d_out),
                    .d_x = view_of(d_x),
                    .factor = view_of(factor),
                    .sums = view_of(sums),
                    .power = context->saved_data["power"].toDouble()},
                   current_stream(x.device()));
    const Tensor d_factor = sums.defined() ? sums.sum(0) : Tensor();
    refuse_twice("focused", {d_x, d_factor}, {gradients[0], x, factor});
    return {d_x, d_factor, Tensor()};
  }
};

}  // namespace

Tensor focused(const Tensor& x, const Tensor& scale, double power) {
  if (is_plain_cuda(x) && is_plain_cuda(scale) && x.scalar_type() != at::kDouble) {
    const Tensor rows = x.flatten(2);
    const Tensor factor = at::softplus(scale.to(at::kFloat)).reciprocal().flatten();
    // x stands in for the result, which is new and therefore aligned.
    if (refusal(describe(rows, factor, rows, power)).empty()) {
      return Focusing::apply(rows, factor, power).view_as(x);
    }
  }
  const Tensor flat = wide(x).flatten(2);
  const Tensor positive = (at::relu(flat) + 1e-6) / at::softplus(scale.to(flat.scalar_type()));
  const Tensor sharp = positive.pow(power);
  const auto length = [](const Tensor& t) { return at::linalg_vector_norm(t, 2, {-1}, true); };
  return (sharp / length(sharp) * length(positive))
      .to(x.scalar_type())
      .unflatten_symint(-1, {x.sym_size(2), x.sym_size(3)});
}

}  // namespace mhla::nn::functional
