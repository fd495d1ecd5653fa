// The operators on the CPU and on CUDA devices: views, workspace and stream for libmhla.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "mhla/error.h"
#include "mhla/token_maps.h"
#include "nn/operators.h"
#include "nn/planning.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace mhla::nn {
namespace {

using ops::Gradients;
using ops::OptionalTensor;

// Up to this size a thread keeps its CPU workspace: fresh pages would cost more than small calls.
constexpr std::size_t kKeptWorkspace = std::size_t{64} << 20;

// Memory for one call. A CUDA workspace comes from LibTorch's caching allocator, which orders its
// reuse by stream.
class CallWorkspace {
 public:
  CallWorkspace(const at::Device& device, std::size_t bytes) {
    workspace_.bytes = bytes;
    if (bytes == 0) return;
    if (device.is_cpu() && bytes <= kKeptWorkspace) {
      workspace_.data = kept(bytes);
      return;
    }
    tensor_ = at::empty({static_cast<std::int64_t>(bytes + kWorkspaceAlignment)},
                        at::TensorOptions(at::kByte).device(device));
    const auto address = reinterpret_cast<std::uintptr_t>(tensor_.data_ptr());
    workspace_.data = reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) /
                                              kWorkspaceAlignment * kWorkspaceAlignment);
  }
  const Workspace& get() const { return workspace_; }

 private:
  static void* kept(std::size_t bytes) {
    struct Free {
      void operator()(void* data) const { std::free(data); }
    };
    thread_local std::unique_ptr<void, Free> memory;
    thread_local std::size_t size = 0;
    if (size < bytes) {
      memory.reset();
      size = (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
      memory.reset(std::aligned_alloc(kWorkspaceAlignment, size));
      if (!memory) {
        size = 0;
        fail("attention", "no memory for a workspace of ", bytes, " bytes");
      }
    }
    return memory.get();
  }

  at::Tensor tensor_;
  Workspace workspace_;
};

// libmhla wants the last dimension contiguous; anything else is copied, and said once.
at::Tensor rows(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 0 || tensor.stride(-1) == 1 || tensor.size(-1) <= 1) {
    return tensor;
  }
  TORCH_WARN_ONCE("mhla: an input whose last dimension is not contiguous is copied at every call");
  return tensor.contiguous();
}

at::Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor ? rows(*tensor) : at::Tensor();
}

at::Tensor forward(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                   const at::Tensor& mixing_in, const OptionalTensor& q_den_in,
                   const OptionalTensor& k_den_in, at::IntArrayRef sizes, at::IntArrayRef sizes_k,
                   c10::string_view options) {
  const at::Tensor q = rows(q_in), k = rows(k_in), v = rows(v_in), mixing = rows(mixing_in);
  const at::Tensor q_den = or_undefined(q_den_in), k_den = or_undefined(k_den_in);
  const Plan plan = plan_of({q, k, v, mixing, q_den, k_den}, {sizes, sizes_k, options});
  at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  const CallWorkspace workspace(q.device(), plan.forward_workspace());
  mhla::forward(plan,
                {.q = view_of(q),
                 .k = view_of(k),
                 .v = view_of(v),
                 .mixing = view_of(mixing),
                 .q_den = view_of(q_den),
                 .k_den = view_of(k_den)},
                {.o = view_of(o)}, workspace.get(), current_stream(q.device()));
  return o;
}

Gradients backward(const at::Tensor& d_o_in, const at::Tensor& q_in, const at::Tensor& k_in,
                   const at::Tensor& v_in, const at::Tensor& mixing_in, const at::Tensor& o,
                   const OptionalTensor& q_den_in, const OptionalTensor& k_den_in,
                   at::IntArrayRef sizes, at::IntArrayRef sizes_k, c10::string_view options,
                   std::array<bool, 6> wanted) {
  const at::Tensor q = rows(q_in), k = rows(k_in), v = rows(v_in), mixing = rows(mixing_in);
  const at::Tensor q_den = or_undefined(q_den_in), k_den = or_undefined(k_den_in);
  const at::Tensor d_o = d_o_in.stride(-1) == 1 || d_o_in.size(-1) <= 1 ? d_o_in
                                                                        : d_o_in.contiguous();
  const Plan plan = plan_of({q, k, v, mixing, q_den, k_den}, {sizes, sizes_k, options});
  const auto gradient = [&wanted](int index, const at::Tensor& of) {
    return wanted[index] && of.defined() ? at::empty(of.sizes(), of.options()) : at::Tensor();
  };
  Gradients d{gradient(0, q),      gradient(1, k),     gradient(2, v),
              gradient(3, mixing), gradient(4, q_den), gradient(5, k_den)};
  const CallWorkspace workspace(q.device(), plan.backward_workspace());
  mhla::backward(plan,
                 {.q = view_of(q),
                  .k = view_of(k),
                  .v = view_of(v),
                  .mixing = view_of(mixing),
                  .o = view_of(rows(o)),
                  .d_o = view_of(d_o),
                  .q_den = view_of(q_den),
                  .k_den = view_of(k_den)},
                 {.d_q = view_of(std::get<0>(d)),
                  .d_k = view_of(std::get<1>(d)),
                  .d_v = view_of(std::get<2>(d)),
                  .d_mixing = view_of(std::get<3>(d)),
                  .d_q_den = view_of(std::get<4>(d)),
                  .d_k_den = view_of(std::get<5>(d))},
                 workspace.get(), current_stream(q.device()));
  return d;
}

// Two or three extents, with 1 in front.
std::array<std::int64_t, 3> three_axes(at::IntArrayRef extents) {
  std::array<std::int64_t, 3> all{1, 1, 1};
  std::copy(extents.begin(), extents.end(), all.end() - static_cast<int>(extents.size()));
  return all;
}

// On a GPU tensors that the kernel with a local term does not take are served by two, the second of
// which has demands of its own.
bool can_add_local(const ForwardInputs& in, const ForwardOutputs& out, at::IntArrayRef grid) {
  if (out.o.device.kind != Device::Kind::cuda) return true;
  return refusal(GridConvolution{.input = in.v,
                                 .output = out.o,
                                 .addend = out.o,
                                 .weight = in.local.weight,
                                 .bias = in.local.bias,
                                 .grid = three_axes(grid),
                                 .kernel = in.local.kernel})
      .empty();
}

std::string explain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& mixing, const OptionalTensor& q_den,
                    const OptionalTensor& k_den, at::IntArrayRef sizes, at::IntArrayRef sizes_k,
                    c10::string_view options) {
  return plan_of({q, k, v, mixing, q_den.value_or(at::Tensor()), k_den.value_or(at::Tensor())},
                 {sizes, sizes_k, options})
      .explain();
}

}  // namespace

namespace ops {

OptionalTensor forward_with_local(const Tensors& tensors, const Description& description,
                                  const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = tensors.v.scalar_type();
  const std::int64_t axes = weight.dim() - 2;
  if (axes < 2 || axes > 3 || axes != static_cast<std::int64_t>(description.sizes.size()) ||
      weight.size(0) != tensors.v.size(2) * tensors.v.size(3) || weight.scalar_type() != type ||
      (bias.defined() && bias.scalar_type() != type)) {
    return std::nullopt;
  }
  for (const at::Tensor* x : {&tensors.q, &tensors.k, &tensors.v}) {
    if (x->stride(-1) != 1) return std::nullopt;
  }
  const Plan plan = plan_of(tensors, description);
  const auto kernel = three_axes(weight.sizes().slice(2));
  if (!plan.adds_local(kernel)) return std::nullopt;
  const at::Tensor q_den = rows(tensors.q_den), k_den = rows(tensors.k_den);
  const at::Tensor taps = weight.contiguous().flatten(1);
  const at::Tensor own_bias = bias.defined() ? bias.contiguous() : bias;
  at::Tensor o = at::empty(tensors.v.sizes(), tensors.v.options());
  at::Tensor mixing = rows(tensors.mixing);
  ForwardInputs inputs{
      .q = view_of(tensors.q),
      .k = view_of(tensors.k),
      .v = view_of(tensors.v),
      .mixing = view_of(mixing),
      .q_den = view_of(q_den),
      .k_den = view_of(k_den),
      .local = {.weight = view_of(taps), .bias = view_of(own_bias), .kernel = kernel}};
  const ForwardOutputs outputs{.o = view_of(o)};
  if (!can_add_local(inputs, outputs, description.sizes)) return std::nullopt;
  if (mixing.element_size() == 2 &&
      (mixing.scalar_type() != type || !plan.reads_narrow_mixing(inputs, outputs))) {
    mixing = mixing.to(at::kFloat);
    inputs.mixing = view_of(mixing);
  }
  const CallWorkspace workspace(o.device(), plan.forward_workspace());
  mhla::forward(plan, inputs, outputs, workspace.get(), current_stream(o.device()));
  return o;
}

}  // namespace ops
}  // namespace mhla::nn

TORCH_LIBRARY_IMPL(mhla, CPU, m) {
  m.impl("forward", TORCH_FN(mhla::nn::forward));
  m.impl("backward", TORCH_FN(mhla::nn::backward));
}
TORCH_LIBRARY_IMPL(mhla, CUDA, m) {
  m.impl("forward", TORCH_FN(mhla::nn::forward));
  m.impl("backward", TORCH_FN(mhla::nn::backward));
}
TORCH_LIBRARY_IMPL(mhla, CompositeExplicitAutograd, m) {
  m.impl("explain", TORCH_FN(mhla::nn::explain));
}
