// For bench/pytorch/overhead.py: the kernel alone, with plan and workspace made beforehand; and an
// operator that computes nothing, which shows what PyTorch takes for any operator of this kind.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <ctime>
#include <memory>
#include <optional>
#include <vector>

#include "nn/planning.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace {

using mhla::nn::view_of;

const at::Tensor kNone;

// What a call would make or look up: plan, workspace and stream.
struct Prepared {
  Prepared(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mixing,
           at::IntArrayRef sizes, c10::string_view options)
      : plan(mhla::nn::plan_of({q, k, v, mixing, kNone, kNone}, {sizes, {}, options})),
        stream(mhla::nn::current_stream(q.device())) {
    const auto bytes = static_cast<std::int64_t>(
        std::max(plan.forward_workspace(), plan.backward_workspace()) + mhla::kWorkspaceAlignment);
    thread_local at::Tensor kept;  // as the operator keeps its own
    if (!kept.defined() || kept.numel() < bytes || kept.device() != q.device()) {
      kept = at::empty({bytes}, q.options().dtype(at::kByte));
    }
    memory = kept;
    void* aligned = memory.data_ptr();
    std::size_t room = static_cast<std::size_t>(bytes);
    std::align(mhla::kWorkspaceAlignment, room - mhla::kWorkspaceAlignment, aligned, room);
    workspace = {aligned, room};
  }

  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mixing) const {
    at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    mhla::forward(plan, {view_of(q), view_of(k), view_of(v), view_of(mixing)}, {.o = view_of(o)},
                  workspace, stream);
    return o;
  }

  mhla::Plan plan;
  mhla::Workspace workspace;
  mhla::Stream stream;
  at::Tensor memory;
};

// A chain of calls, each reading the result of the one before as its q, and with d_o the backward
// pass through all of them. Results are fresh tensors; where `recorded`, they live as long as a
// graph would keep them.
void raw(const at::Tensor& q, at::TensorList k, at::TensorList v, at::TensorList mixing,
         bool recorded, const std::optional<at::Tensor>& d_o, at::IntArrayRef sizes,
         c10::string_view options) {
  const Prepared prepared(q, k[0], v[0], mixing[0], sizes, options);
  const auto like = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); };

  std::vector<at::Tensor> x{q};  // the q of every call, and the result of the last
  for (std::size_t i = 0; i < k.size(); ++i) {
    at::Tensor o = prepared.forward(x.back(), k[i], v[i], mixing[i]);
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
    mhla::backward(prepared.plan,
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
                   prepared.workspace, prepared.stream);
    x.pop_back();  // as the engine frees what a node has saved
    gradients.back() = d_k;
    gradients.insert(gradients.end(), {d_v, d_mixing, d_q});
  }
}

// The kernel of `large` (q, k, v, mixing) and then, timed, a call with `small`; microseconds of
// processor time. `small` empty: nothing is timed.
std::vector<double> after(at::TensorList large, at::IntArrayRef large_sizes, at::TensorList small,
                          at::IntArrayRef small_sizes, c10::string_view options,
                          std::int64_t count) {
  const auto prepare = [&](at::TensorList t, at::IntArrayRef sizes) {
    return Prepared(t[0], t[1], t[2], t[3], sizes, options);
  };
  const auto run = [](const Prepared& prepared, at::TensorList t) {
    return prepared.forward(t[0], t[1], t[2], t[3]);
  };
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
  };
  const Prepared first = prepare(large, large_sizes);
  std::optional<Prepared> second;
  if (!small.empty()) second.emplace(prepare(small, small_sizes));
  std::vector<double> times;
  for (std::int64_t i = 0; i < count; ++i) {
    const at::Tensor kept = run(first, large);
    if (!second) continue;
    const double start = now();
    run(*second, small);
    times.push_back(now() - start);
  }
  return times;
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
  m.def(
      "after(Tensor[] large, int[] large_sizes, Tensor[] small, int[] small_sizes, str options, "
      "int count) -> float[]",
      TORCH_FN(after));
}
TORCH_LIBRARY_IMPL(mhla_bench, Autograd, m) { m.impl("nothing", TORCH_FN(nothing)); }
