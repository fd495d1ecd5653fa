// For bench/pytorch/overhead.py: the kernel alone, with plan and workspace made beforehand; and an
// operator that computes nothing, which shows what PyTorch takes for any operator of this kind.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "nn/planning.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace {

// Runs `count` forward, or forward and backward, passes.
void raw(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mixing,
         at::IntArrayRef sizes, c10::string_view options, std::int64_t count, bool backward) {
  using mhla::nn::view_of;
  const at::Tensor none;
  const mhla::Plan plan = mhla::nn::plan_of({q, k, v, mixing, none, none}, {sizes, {}, options});
  const auto bytes = static_cast<std::int64_t>(
      std::max(plan.forward_workspace(), plan.backward_workspace()) + mhla::kWorkspaceAlignment);
  const at::Tensor memory = at::empty({bytes}, q.options().dtype(at::kByte));
  void* aligned = memory.data_ptr();
  std::size_t room = static_cast<std::size_t>(bytes);
  std::align(mhla::kWorkspaceAlignment, room - mhla::kWorkspaceAlignment, aligned, room);
  const mhla::Workspace workspace{aligned, room};
  const mhla::ForwardInputs in{view_of(q), view_of(k), view_of(v), view_of(mixing)};
  const mhla::Stream stream = mhla::nn::current_stream(q.device());
  for (std::int64_t i = 0; i < count; ++i) {
    // Results are new tensors, as those of any operator are: fresh memory is no overhead of ours.
    const at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    mhla::forward(plan, in, {.o = view_of(o)}, workspace, stream);
    if (!backward) continue;
    const auto gradient = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); };
    const at::Tensor d_q = gradient(q), d_k = gradient(k), d_v = gradient(v),
                     d_mixing = gradient(mixing);
    mhla::backward(
        plan,
        {.q = in.q, .k = in.k, .v = in.v, .mixing = in.mixing, .o = view_of(o), .d_o = view_of(o)},
        {.d_q = view_of(d_q),
         .d_k = view_of(d_k),
         .d_v = view_of(d_v),
         .d_mixing = view_of(d_mixing)},
        workspace, stream);
  }
}

// As many inputs, results and gradients as the attention has.
class Nothing : public torch::autograd::Function<Nothing> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const at::Tensor& mixing) {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor o = at::empty(q.sizes(), q.options());
    context->save_for_backward({q, k, v, mixing, o});
    return o;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    torch::autograd::variable_list gradients = context->get_saved_variables();
    gradients.pop_back();
    for (at::Tensor& each : gradients) each = at::empty(each.sizes(), each.options());
    return gradients;
  }
};

at::Tensor nothing(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mixing) {
  return Nothing::apply(q, k, v, mixing);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mhla_bench, m) {
  m.def("nothing(Tensor q, Tensor k, Tensor v, Tensor mixing) -> Tensor");
  m.def(
      "raw(Tensor q, Tensor k, Tensor v, Tensor mixing, int[] sizes, str options, int count, "
      "bool backward) -> ()",
      TORCH_FN(raw));
}
TORCH_LIBRARY_IMPL(mhla_bench, Autograd, m) { m.impl("nothing", TORCH_FN(nothing)); }
