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

// A chain of calls, each reading the result of the one before as its q, and with d_o the backward
// pass through all of them. Results are fresh tensors; where `recorded`, they live as long as a
// graph would keep them.
void raw(const at::Tensor& q, at::TensorList k, at::TensorList v, at::TensorList mixing,
         bool recorded, const std::optional<at::Tensor>& d_o, at::IntArrayRef sizes,
         c10::string_view options) {
  using mhla::nn::view_of;
  const at::Tensor none;
  const mhla::Plan plan = mhla::nn::plan_of({q, k[0], v[0], mixing[0], none, none},
                                            {sizes, {}, options});
  const auto bytes = static_cast<std::int64_t>(
      std::max(plan.forward_workspace(), plan.backward_workspace()) + mhla::kWorkspaceAlignment);
  thread_local at::Tensor memory;  // kept, as the operator keeps its own
  if (!memory.defined() || memory.numel() < bytes || memory.device() != q.device()) {
    memory = at::empty({bytes}, q.options().dtype(at::kByte));
  }
  void* aligned = memory.data_ptr();
  std::size_t room = static_cast<std::size_t>(bytes);
  std::align(mhla::kWorkspaceAlignment, room - mhla::kWorkspaceAlignment, aligned, room);
  const mhla::Workspace workspace{aligned, room};
  const mhla::Stream stream = mhla::nn::current_stream(q.device());
  const auto like = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); };

  std::vector<at::Tensor> x{q};  // the q of every call, and the result of the last
  for (std::size_t i = 0; i < k.size(); ++i) {
    at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), v[i].size(3)}, q.options());
    mhla::forward(plan, {view_of(x.back()), view_of(k[i]), view_of(v[i]), view_of(mixing[i])},
                  {.o = view_of(o)}, workspace, stream);
    if (!recorded) x.clear();
    x.push_back(std::move(o));
  }
  if (!d_o) {
    while (!x.empty()) x.pop_back();  // the last first, as a graph frees them: the next call gets
    return;                           // its memory in the same order
  }
  std::vector<at::Tensor> gradients{*d_o};
  for (std::size_t i = k.size(); i-- > 0;) {
    const at::Tensor d = gradients.back();
    at::Tensor d_q = like(x[i]), d_k = like(k[i]), d_v = like(v[i]), d_mixing = like(mixing[i]);
    mhla::backward(plan,
                   {.q = view_of(x[i]),
                    .k = view_of(k[i]),
                    .v = view_of(v[i]),
                    .mixing = view_of(mixing[i]),
                    .o = view_of(x[i + 1]),
                    .d_o = view_of(d)},
                   {.d_q = view_of(d_q),
                    .d_k = view_of(d_k),
                    .d_v = view_of(d_v),
                    .d_mixing = view_of(d_mixing)},
                   workspace, stream);
    x.pop_back();  // as the engine frees what a node has saved
    gradients.back() = d_k;
    gradients.insert(gradients.end(), {d_v, d_mixing, d_q});
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
      "raw(Tensor q, Tensor[] k, Tensor[] v, Tensor[] mixing, bool recorded, Tensor? d_o, "
      "int[] sizes, str options) -> ()",
      TORCH_FN(raw));
}
TORCH_LIBRARY_IMPL(mhla_bench, Autograd, m) { m.impl("nothing", TORCH_FN(nothing)); }
