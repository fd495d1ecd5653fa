#include "nn/functional/token_maps.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "mhla/token_maps.h"
#include "nn/once.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sums over tokens: about as many thread blocks as a GPU holds at once, with enough to do.
constexpr std::int64_t kBlocks = 264, kStripChannels = 64, kFewestTokens = 512;

Tensor new_rows(const Tensor& like) { return at::empty(like.sizes(), like.options()); }

GridConvolution describe(const Tensor& v, at::IntArrayRef grid, const Tensor& weight,
                         const Tensor& bias, const Tensor& addend, const Tensor& out) {
  GridConvolution call{.input = view_of(v),
                       .output = view_of(out),
                       .addend = view_of(addend),
                       .weight = view_of(weight.flatten(1)),
                       .bias = view_of(bias)};
  const std::size_t front = 3 - grid.size();
  for (std::size_t i = 0; i < grid.size(); ++i) {
    call.grid[front + i] = grid[i];
    call.kernel[front + i] = weight.size(static_cast<std::int64_t>(2 + i));
  }
  return call;
}

Tensor weight_sums(const Tensor& v, const Tensor& d_out, const std::vector<std::int64_t>& grid,
                   const Tensor& weight) {
  const GridConvolution same = describe(v, grid, weight, {}, {}, v);
  const std::int64_t channels = weight.size(0), taps = weight.numel() / channels;
  const std::int64_t strips = (channels + kStripChannels - 1) / kStripChannels;
  const std::int64_t most = (v.size(0) * v.size(1) + kFewestTokens - 1) / kFewestTokens;
  const std::int64_t parts = std::clamp<std::int64_t>(kBlocks / strips, 1, most);
  const Tensor sums = at::empty({parts, taps + 1, channels}, v.options().dtype(at::kFloat));
  grid_convolution_gradient({.input = view_of(v),
                             .d_output = view_of(d_out),
                             .sums = view_of(sums),
                             .grid = same.grid,
                             .kernel = same.kernel},
                            current_stream(v.device()));
  return sums.sum(0);
}

class Convolution : public torch::autograd::Function<Convolution> {
 public:
  // NOTE: absent tensors come as empty optionals; LibTorch asks undefined ones for their device.
  static Tensor forward(AutogradContext* context, const Tensor& v, const Tensor& weight,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& addend,
                        std::vector<std::int64_t> grid) {
    const Tensor out = new_rows(v);
    grid_convolution(
        describe(v, grid, weight, bias.value_or(Tensor()), addend.value_or(Tensor()), out),
        current_stream(v.device()));
    context->save_for_backward({v, weight});
    context->saved_data["grid"] = std::move(grid);
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["has_addend"] = addend.has_value();
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &v = saved[0], &weight = saved[1];
    const std::vector<std::int64_t> grid = context->saved_data["grid"].toIntVector();
    const Tensor d_out = aligned(gradients[0]);
    Tensor d_v, d_weight, d_bias;
    if (context->needs_input_grad(0)) {
      d_v = new_rows(v);
      GridConvolution call = describe(d_out, grid, weight, {}, {}, d_v);
      call.transposed = true;
      grid_convolution(call, current_stream(v.device()));
    }
    // Gradients are counted over the tensors that came.
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const bool has_addend = context->saved_data["has_addend"].toBool();
    const bool wants_weight = context->needs_input_grad(1);
    const bool wants_bias = has_bias && context->needs_input_grad(2);
    const bool wants_addend = has_addend && context->needs_input_grad(has_bias ? 3 : 2);
    if (wants_weight || wants_bias) {
      const Tensor sums = weight_sums(v, d_out, grid, weight);  // [taps + 1, H * D]
      const std::int64_t taps = sums.size(0) - 1;
      const auto like = [&weight](const Tensor& d) { return d.to(weight.scalar_type()); };
      if (wants_weight) d_weight = like(sums.narrow(0, 0, taps).t().reshape(weight.sizes()));
      if (wants_bias) d_bias = like(sums[taps]);
    }
    refuse_twice("grid_convolution", {d_v, d_weight, d_bias}, {gradients[0], v, weight});
    return {d_v, d_weight, d_bias, wants_addend ? gradients[0] : Tensor(), Tensor()};
  }
};

class Turn : public torch::autograd::Function<Turn> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin, bool neighbours) {
    context->save_for_backward({cos, sin});
    context->saved_data["neighbours"] = neighbours;
    return turned(x, cos, sin, neighbours, /*back=*/false);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const bool neighbours = context->saved_data["neighbours"].toBool();
    const Tensor d_x = turned(aligned(gradients[0]), saved[0], saved[1], neighbours, /*back=*/true);
    refuse_twice("rotary", {d_x}, {gradients[0]});
    return {d_x, Tensor(), Tensor(), Tensor()};
  }
  static RotaryTurn describe(const Tensor& x, const Tensor& cos, const Tensor& sin,
                             const Tensor& out, bool neighbours, bool back) {
    const std::int64_t pairs = cos.size(-1);
    return {.input = view_of(x),
            .output = view_of(out),
            .cos = view_of(cos.reshape({-1, pairs})),
            .sin = view_of(sin.reshape({-1, pairs})),
            .neighbours = neighbours,
            .back = back};
  }

 private:
  static Tensor turned(const Tensor& x, const Tensor& cos, const Tensor& sin, bool neighbours,
                       bool back) {
    const Tensor out = new_rows(x);
    rotary_turn(describe(x, cos, sin, out, neighbours, back), current_stream(x.device()));
    return out;
  }
};

}  // namespace

bool is_plain_cuda(const Tensor& x) {
  using c10::DispatchKey;
  const c10::DispatchKeySet keys = x.key_set();
  return x.is_cuda() && !keys.has(DispatchKey::Python) &&
         !keys.has(DispatchKey::FuncTorchBatched) && !keys.has(DispatchKey::FuncTorchGradWrapper) &&
         !keys.has(DispatchKey::Functionalize) && !x._fw_grad(/*level=*/0).defined();
}

Tensor aligned(const Tensor& x) {
  const Tensor rows = x.contiguous();
  bool whole = reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % 16 == 0;
  for (std::int64_t axis = 0; axis + 1 < rows.dim(); ++axis) {
    // An axis of one may have any stride.
    whole = whole && rows.stride(axis) % rows.size(-1) == 0;
  }
  return whole ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

std::optional<Tensor> convolve_by_kernel(const Tensor& v, at::IntArrayRef grid,
                                         const Tensor& weight, const std::optional<Tensor>& bias,
                                         const std::optional<Tensor>& addend) {
  const std::int64_t heads = v.size(2), width = v.size(3);
  if (!is_plain_cuda(v) || !is_plain_cuda(weight)) return std::nullopt;
  if (weight.size(0) == width && heads > 1) {  // shared by the heads: a copy for each of them
    std::vector<std::int64_t> copies(static_cast<std::size_t>(weight.dim()), 1);
    copies[0] = heads;
    return convolve_by_kernel(v, grid, weight.repeat(copies),
                              bias ? std::optional(bias->repeat({heads})) : bias, addend);
  }
  if (weight.size(0) != heads * width) return std::nullopt;
  if (addend && addend->scalar_type() != v.scalar_type()) return std::nullopt;
  const Tensor flat = weight.contiguous();
  // v stands in for the result, which is new and therefore aligned.
  const GridConvolution call = describe(v, grid, flat, bias.value_or(Tensor()),
                                        addend.value_or(Tensor()), v);
  if (!refusal(call).empty()) return std::nullopt;
  return Convolution::apply(v, flat, bias, addend, grid.vec());
}

std::optional<Tensor> turn_by_kernel(const Tensor& x, const Tensor& cos, const Tensor& sin,
                                     bool neighbours) {
  if (!is_plain_cuda(x) || cos.scalar_type() != at::kFloat) return std::nullopt;
  if (!refusal(Turn::describe(x, cos, sin, x, neighbours, false)).empty()) return std::nullopt;
  return Turn::apply(x, cos.contiguous(), sin.contiguous(), neighbours);
}

}  // namespace mhla::nn::functional
