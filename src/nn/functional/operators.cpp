// The functions as operators, `torch.ops.mhla.*`. They are made of ATen operations and of the
// operator itself, so gradients, devices, autocast and compilation need nothing more.
#include <torch/library.h>

#include "nn/functional/bidirectional.h"
#include "nn/functional/layers.h"
#include "nn/functional/norms.h"
#include "nn/functional/recurrent.h"

namespace f = mhla::nn::functional;

namespace {

using at::Tensor;
using f::OptionalTensor;

Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

std::tuple<Tensor, Tensor> residual_norm(const Tensor& x, const Tensor& branch,
                                         const OptionalTensor& gate, const OptionalTensor& weight,
                                         const OptionalTensor& bias, const OptionalTensor& shift,
                                         const OptionalTensor& scale, double eps, bool rms) {
  const auto [sum, normed] = f::residual_norm(
      {.x = x,
       .branch = branch,
       .gate = or_undefined(gate),
       .shift = or_undefined(shift),
       .scale = or_undefined(scale)},
      {.weight = or_undefined(weight), .bias = or_undefined(bias), .eps = eps, .rms = rms});
  return {sum, normed};
}

Tensor modulated_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& shift, const OptionalTensor& scale,
                      const OptionalTensor& then_weight, const OptionalTensor& then_bias,
                      double eps, bool rms) {
  f::ResidualNorm call{.x = x, .shift = or_undefined(shift), .scale = or_undefined(scale)};
  if (then_weight) call.then = {or_undefined(then_weight), or_undefined(then_bias), 1e-5};
  return f::residual_norm(call, {or_undefined(weight), or_undefined(bias), eps, rms}).normed;
}

std::tuple<Tensor, Tensor> normed_and_turned(const Tensor& x, const Tensor& weight,
                                             std::int64_t heads, at::IntArrayRef grid,
                                             bool relu_eps, double eps) {
  const auto [turned, plain] = f::normed_and_turned(
      x, {.weight = weight, .eps = eps, .rms = true},
      {.heads = heads,
       .grid = grid,
       .map = relu_eps ? mhla::FeatureMap::relu_eps : mhla::FeatureMap::relu,
       .plain = true});
  return {turned, plain};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def("rotary(Tensor x, float base=10000., Tensor? offset=None) -> Tensor", TORCH_FN(f::rotary));
  m.def("rotary_grid(Tensor x, int[] grid) -> Tensor", TORCH_FN(f::rotary_grid));
  m.def("rotary_axes(Tensor x, int[] grid, float base=10000.) -> Tensor", TORCH_FN(f::rotary_axes));
  m.def(
      "short_convolution(Tensor x, Tensor weight, Tensor? bias=None, Tensor? state=None) -> "
      "(Tensor, Tensor)",
      TORCH_FN(f::short_convolution));
  m.def(
      "residual_norm(Tensor x, Tensor branch, Tensor? gate=None, Tensor? weight=None, "
      "Tensor? bias=None, Tensor? shift=None, Tensor? scale=None, float eps=1e-6, "
      "bool rms=False) -> (Tensor, Tensor)",
      TORCH_FN(residual_norm));
  m.def(
      "modulated_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, Tensor? shift=None, "
      "Tensor? scale=None, Tensor? then_weight=None, Tensor? then_bias=None, float eps=1e-6, "
      "bool rms=False) -> Tensor",
      TORCH_FN(modulated_norm));
  m.def(
      "normed_and_turned(Tensor x, Tensor weight, int heads, int[] grid, bool relu_eps=False, "
      "float eps=1e-6) -> (Tensor, Tensor)",
      TORCH_FN(normed_and_turned));
  m.def("focused(Tensor x, Tensor scale, float power=3.) -> Tensor", TORCH_FN(f::focused));
  m.def("unit_norm(Tensor x, float eps=1e-6) -> Tensor", TORCH_FN(f::unit_norm));
  m.def("gated_head_norm(Tensor o, Tensor? gate, Tensor weight, float eps=1e-6) -> Tensor",
        TORCH_FN(f::gated_head_norm));
  m.def("gate_then_norm(Tensor y, Tensor z, Tensor weight, float eps=1e-5) -> Tensor",
        TORCH_FN(f::gate_then_norm));
  m.def(
      "grid_convolution(Tensor v, int[] grid, Tensor weight, Tensor? bias=None, "
      "Tensor? addend=None) -> Tensor",
      TORCH_FN(f::grid_convolution));

  m.def(
      "softmax_attention(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None) -> "
      "Tensor",
      TORCH_FN(f::softmax_attention));
  m.def(
      "linear_attention(Tensor q, Tensor k, Tensor v, str feature_map='relu', float eps=1e-6, "
      "Tensor? q_den=None, Tensor? k_den=None) -> Tensor",
      TORCH_FN(f::linear_attention));
  m.def(
      "focused_attention(Tensor q, Tensor k, Tensor v, Tensor scale, float power=3., "
      "float eps=1e-6) -> Tensor",
      TORCH_FN(f::focused_attention));
  m.def("inline_attention(Tensor q, Tensor k, Tensor v) -> Tensor", TORCH_FN(f::inline_attention));
  m.def("rala(Tensor q, Tensor k, Tensor v, int[] grid, float eps=1e-6) -> Tensor",
        TORCH_FN(f::rala));
  m.def("mala(Tensor q, Tensor k, Tensor v, int[] grid, float eps=1e-6) -> Tensor",
        TORCH_FN(f::mala));

  m.def(
      "causal_linear_attention(Tensor q, Tensor k, Tensor v, float? scale=None, "
      "Tensor? state=None, int chunk=64) -> (Tensor, Tensor)",
      TORCH_FN(f::causal_linear_attention));
  m.def(
      "simple_gla(Tensor q, Tensor k, Tensor v, Tensor g, float? scale=None, Tensor? state=None, "
      "int chunk=64) -> (Tensor, Tensor)",
      TORCH_FN(f::simple_gla));
  m.def(
      "retention(Tensor q, Tensor k, Tensor v, float? scale=None, Tensor? state=None, "
      "int chunk=64) -> (Tensor, Tensor)",
      TORCH_FN(f::retention));
  m.def(
      "ssd(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d=None, Tensor? state=None, "
      "int chunk=64) -> (Tensor, Tensor)",
      TORCH_FN(f::ssd));
  m.def(
      "gla(Tensor q, Tensor k, Tensor v, Tensor g, float? scale=None, Tensor? state=None, "
      "int chunk=64) -> (Tensor, Tensor)",
      TORCH_FN(f::gla));
  m.def(
      "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float? scale=None, "
      "Tensor? state=None, int chunk=64) -> (Tensor, Tensor)",
      TORCH_FN(f::gated_delta_rule));
}
