#include "nn/functional/norms.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mhla/norms.h"
#include "nn/functional/token_maps.h"
#include "nn/once.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kMostSamples = 65535;  // of a grid's third axis, in the gradient

OptionalTensor optional(const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; }
TensorView view_of_optional(const OptionalTensor& x) { return view_of(x.value_or(Tensor())); }

bool wants_gradient(std::initializer_list<const Tensor*> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor* each : tensors) {
    if (each->defined() && each->requires_grad()) return true;
  }
  return false;
}

Tensor apply(const Tensor& x, const Norm& norm) {
  const std::int64_t width[] = {x.size(-1)};
  return norm.rms ? at::rms_norm(x, width, optional(norm.weight), norm.eps)
                  : at::layer_norm(x, width, optional(norm.weight), optional(norm.bias), norm.eps);
}

SumAndNormed compose(const ResidualNorm& call, const Norm& norm) {
  SumAndNormed result{.sum = call.x, .normed = {}};
  if (call.branch.defined()) {
    result.sum = call.gate.defined() ? at::addcmul(call.x, call.branch, call.gate.unsqueeze(1))
                                     : call.x + call.branch;
  }
  result.normed = apply(result.sum, norm);
  if (call.scale.defined()) {
    result.normed = at::addcmul(call.shift.unsqueeze(1), result.normed,
                                1 + call.scale.unsqueeze(1));
  }
  if (call.then) result.normed = apply(result.normed, *call.then);
  return result;
}

// What the result is stored as: under autocast as the products that follow want it.
at::ScalarType result_type(const Tensor& x) {
  const bool narrowed = x.scalar_type() == at::kFloat &&
                        at::autocast::is_autocast_enabled(at::kCUDA);
  return narrowed ? at::autocast::get_autocast_dtype(at::kCUDA) : x.scalar_type();
}

struct Inputs {
  Tensor x;
  OptionalTensor branch, gate, weight, bias, shift, scale;
};

RowNorm describe(const Inputs& in, double eps, bool rms) {
  return {.x = view_of(in.x),
          .branch = view_of_optional(in.branch),
          .gate = view_of_optional(in.gate),
          .weight = view_of_optional(in.weight),
          .bias = view_of_optional(in.bias),
          .scale = view_of_optional(in.scale),
          .shift = view_of_optional(in.shift),
          .sum = {},
          .out = {},
          .statistics = {},
          .eps = eps,
          .rms = rms,
          .then_weight = {},
          .then_bias = {},
          .plain = {},
          .cos = {},
          .sin = {}};
}

Tensor new_rows(const Tensor& like, at::ScalarType type) {
  return at::empty(like.sizes(), like.options().dtype(type));
}

class FusedNorm : public torch::autograd::Function<FusedNorm> {
 public:
  // NOTE: absent tensors come as empty optionals; LibTorch asks undefined ones for their device.
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const OptionalTensor& branch, const OptionalTensor& gate,
                               const OptionalTensor& weight, const OptionalTensor& bias,
                               const OptionalTensor& shift, const OptionalTensor& scale, double eps,
                               bool rms, at::ScalarType type) {
    RowNorm call = describe({x, branch, gate, weight, bias, shift, scale}, eps, rms);
    const Tensor out = new_rows(x, type);
    const Tensor statistics = at::empty({x.size(0), x.size(1), 2}, x.options().dtype(at::kFloat));
    Tensor sum = x;
    if (branch) sum = new_rows(x, x.scalar_type()), call.sum = view_of(sum);
    call.out = view_of(out), call.statistics = view_of(statistics);
    row_norm(call, current_stream(x.device()));
    const auto or_undefined = [](const OptionalTensor& t) { return t.value_or(Tensor()); };
    context->save_for_backward({sum, statistics, or_undefined(branch), or_undefined(gate),
                                or_undefined(weight), or_undefined(bias), or_undefined(scale)});
    context->saved_data["rms"] = rms;
    context->saved_data["shift"] = shift.has_value();
    context->set_materialize_grads(false);
    return branch ? variable_list{sum, out} : variable_list{out};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list inputs = context->get_saved_variables();
    const variable_list results = computed(context, inputs, gradients);
    inputs.insert(inputs.end(), gradients.begin(), gradients.end());
    refuse_twice("norm", results, inputs);
    return results;
  }

 private:
  static variable_list computed(AutogradContext* context, const variable_list& saved,
                                const variable_list& gradients) {
    const Tensor &sum = saved[0], &statistics = saved[1], &branch = saved[2], &gate = saved[3];
    const Tensor &weight = saved[4], &bias = saved[5], &scale = saved[6];
    const bool has_branch = branch.defined(), has_shift = context->saved_data["shift"].toBool();
    // Gradients are counted over the tensors that came.
    std::size_t count = 0;
    const auto wants = [&](bool there) { return there && context->needs_input_grad(count++); };
    count = 1;
    const bool to_branch = wants(has_branch), to_gate = wants(gate.defined());
    const bool to_weight = wants(weight.defined()), to_bias = wants(bias.defined());
    const bool to_shift = wants(has_shift), to_scale = wants(scale.defined());

    const Tensor& d_normed = gradients[has_branch ? 1 : 0];
    const at::ScalarType type = has_branch ? branch.scalar_type()
                                           : (d_normed.defined() ? d_normed : sum).scalar_type();
    const Tensor d_out = d_normed.defined() ? aligned(d_normed.to(type))
                                            : at::zeros(sum.sizes(), sum.options().dtype(type));
    Tensor d_sum;
    if (has_branch && gradients[0].defined()) {
      d_sum = aligned(gradients[0].to(sum.scalar_type()));
    }
    const Tensor d_x = new_rows(sum, sum.scalar_type());
    const Tensor d_branch = to_branch ? new_rows(sum, type) : Tensor();
    const Tensor sums = to_gate || to_weight || to_bias || to_shift || to_scale
                            ? at::empty({3, sum.size(0),
                                         row_norm_parts(sum.size(0), sum.size(1), sum.size(2)),
                                         sum.size(2)},
                                        statistics.options())
                            : Tensor();
    row_norm_backward({.x = view_of(sum),
                       .statistics = view_of(statistics),
                       .branch = view_of(branch),
                       .gate = view_of(gate),
                       .weight = view_of(weight),
                       .scale = view_of(scale),
                       .d_out = view_of(d_out),
                       .d_sum = view_of(d_sum),
                       .d_x = view_of(d_x),
                       .d_branch = view_of(d_branch),
                       .sums = view_of(sums),
                       .rms = context->saved_data["rms"].toBool()},
                      current_stream(sum.device()));
    variable_list results(10);  // as many as forward has arguments
    results[0] = d_x, results[1] = d_branch;
    if (!sums.defined()) return results;
    // Of d_out, with normed x, with branch: each [B, C] where samples matter, else [C].
    const bool by_sample = to_gate || to_shift || scale.defined();
    const auto all = (by_sample ? sums.sum(2) : sums.sum({1, 2})).unbind(0);
    const auto like = [](const Tensor& d, const Tensor& of) { return d.to(of.scalar_type()); };
    const auto steered = [&](const Tensor& d) {
      return by_sample ? (scale.defined() ? d * (1 + scale) : d).sum(0) : d;
    };
    if (to_gate) results[2] = like(all[2], gate);
    if (to_weight) results[3] = like(steered(all[1]), weight);
    if (to_bias) results[4] = like(steered(all[0]), bias);
    if (to_shift) results[5] = like(all[0], scale.defined() ? scale : sum);
    if (to_scale) {
      const Tensor plain = weight.defined() ? all[1] * weight : all[1];
      results[6] = like(bias.defined() ? plain + all[0] * bias : plain, scale);
    }
    return results;
  }
};

Inputs inputs_of(const ResidualNorm& call, const Norm& norm) {
  return {call.x,
          optional(call.branch),
          optional(call.gate),
          optional(norm.weight),
          optional(norm.bias),
          optional(call.shift),
          optional(call.scale)};
}

bool is_plain(const Tensor& x) { return !x.defined() || is_plain_cuda(x); }

// [B, N, C]; nothing where LibTorch's operations have to do it.
std::optional<SumAndNormed> by_kernel(const ResidualNorm& call, const Norm& norm) {
  for (const Tensor* each : {&call.x, &call.branch, &call.gate, &call.shift, &call.scale}) {
    if (!is_plain(*each)) return std::nullopt;
  }
  if (!is_plain(norm.weight) || !is_plain(norm.bias) || call.x.dim() != 3) return std::nullopt;
  const at::ScalarType type = result_type(call.x);
  if (call.x.scalar_type() == at::kDouble || type == at::kDouble) return std::nullopt;
  const Inputs in = inputs_of(call, norm);
  RowNorm row = describe(in, norm.eps, norm.rms);
  // Results are new and therefore aligned; x stands in for them.
  TensorView out = row.x;
  out.dtype = dtype_of(type);
  const auto& c = call.x;
  out.strides = {c.size(1) * c.size(2), c.size(2), 1, 0};
  row.out = out;
  if (call.branch.defined()) row.sum = row.x;
  if (!refusal(row).empty()) return std::nullopt;
  const bool gradient = wants_gradient(
      {&call.x, &call.branch, &call.gate, &call.shift, &call.scale, &norm.weight, &norm.bias});
  if (gradient) {
    if (call.x.size(0) > kMostSamples) return std::nullopt;
    if (call.then) {
      std::optional<SumAndNormed> first = by_kernel(
          {call.x, call.branch, call.gate, call.shift, call.scale}, norm);
      if (first) first->normed = normed(first->normed, *call.then);
      return first;
    }
    const variable_list results = FusedNorm::apply(in.x, in.branch, in.gate, in.weight, in.bias,
                                                   in.shift, in.scale, norm.eps, norm.rms, type);
    return SumAndNormed{call.branch.defined() ? results[0] : call.x, results.back()};
  }
  SumAndNormed result{.sum = call.x, .normed = new_rows(call.x, type)};
  if (call.branch.defined()) {
    result.sum = new_rows(call.x, call.x.scalar_type());
    row.sum = view_of(result.sum);
  }
  row.out = view_of(result.normed);
  if (call.then) {
    row.then_weight = view_of(call.then->weight), row.then_bias = view_of(call.then->bias);
    row.then_eps = call.then->eps;
    if (!refusal(row).empty()) return std::nullopt;
  }
  row_norm(row, current_stream(call.x.device()));
  return result;
}

}  // namespace

SumAndNormed residual_norm(const ResidualNorm& call, const Norm& norm) {
  if (auto done = by_kernel(call, norm)) return *done;
  return compose(call, norm);
}

Tensor normed(const Tensor& x, const Norm& norm) {
  // A norm alone does not care which rows belong to a sample. Its gradient wants them in one, of
  // which sums are made.
  if (is_plain_cuda(x) && x.dim() > 1 && x.numel() > 0) {
    const bool together = x.is_contiguous() || x.dim() == 2 ||
                          wants_gradient({&x, &norm.weight, &norm.bias});
    const Tensor rows = together ? x.reshape({1, -1, x.size(-1)}) : x.flatten(0, x.dim() - 3);
    if (auto done = by_kernel({.x = rows}, norm)) return done->normed.view(x.sizes());
  }
  return apply(x, norm);
}

std::optional<TurnedAndPlain> turn_normed_by_kernel(const Tensor& x, const Norm& norm,
                                                    const HeadTurn& turn, const Tensor& cos,
                                                    const Tensor& sin) {
  if (!is_plain_cuda(x) || !is_plain(norm.weight) || !is_plain(norm.bias)) return std::nullopt;
  if (x.dim() != 3 || cos.scalar_type() != at::kFloat) return std::nullopt;
  if (wants_gradient({&x, &norm.weight, &norm.bias})) return std::nullopt;
  if (x.scalar_type() == at::kDouble || x.numel() == 0) return std::nullopt;
  RowNorm row = describe(inputs_of({.x = x}, norm), norm.eps, norm.rms);
  const Tensor out = new_rows(x, x.scalar_type());
  const Tensor plain = turn.plain ? new_rows(x, x.scalar_type()) : Tensor();
  const std::int64_t pairs = cos.size(-1);
  const Tensor cos_rows = cos.reshape({-1, pairs}), sin_rows = sin.reshape({-1, pairs});
  row.out = view_of(out), row.plain = view_of(plain), row.map = turn.map;
  row.cos = view_of(cos_rows), row.sin = view_of(sin_rows);
  if (!refusal(row).empty()) return std::nullopt;
  row_norm(row, current_stream(x.device()));
  const auto by_head = [&turn](const Tensor& t) {
    return t.defined() ? t.unflatten(-1, {turn.heads, -1}) : t;
  };
  return TurnedAndPlain{by_head(out), by_head(plain)};
}

}  // namespace mhla::nn::functional
