// Gradients, autocast, and what is refused: double backward and vmap.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <initializer_list>
#include <vector>

#include "nn/once.h"
#include "nn/operators.h"

namespace mhla::nn {
namespace {

using at::Tensor;
using ops::Gradients;
using ops::OptionalTensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// NOTE: a Node of our own: torch::autograd::Function packs what it saves by name and costs twice.
class AttentionBackward : public torch::autograd::Node {
 public:
  AttentionBackward(const Tensors& t, c10::SymIntArrayRef sizes, c10::SymIntArrayRef sizes_k,
                    c10::string_view options)
      : Node(edges_of(t)),
        q(t.q, false),
        k(t.k, false),
        v(t.v, false),
        mixing(t.mixing, false),
        sizes(sizes.begin(), sizes.end()),
        sizes_k(sizes_k.begin(), sizes_k.end()),
        options(options.data(), options.size()) {
    if (!t.q_den.defined() && !t.k_den.defined()) return;
    denominator.reserve(2);
    for (const Tensor* each : {&t.q_den, &t.k_den}) denominator.emplace_back(*each, false);
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    variable_list results(6);
    if (!gradients[0].defined()) return results;
    std::array<bool, 6> wanted{};
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = task_should_compute_output(i);
    const auto den = [this](std::size_t i) {
      Tensor tensor = denominator.empty() ? Tensor() : denominator[i].unpack();
      return tensor.defined() ? OptionalTensor(std::move(tensor)) : std::nullopt;
    };
    // Without gradients of gradients there is nothing to record: past the autograd kernel.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!at::GradMode::is_enabled()) below.emplace();
    std::tie(results[0], results[1], results[2], results[3], results[4],
             results[5]) = ops::backward(gradients[0], q.unpack(), k.unpack(), v.unpack(),
                                         mixing.unpack(), o.unpack(getptr()), den(0), den(1), sizes,
                                         sizes_k, options, wanted);
    return results;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable* each : {&q, &k, &v, &mixing, &o}) each->reset_data();
    for (SavedVariable& each : denominator) each.reset_data();
  }

  std::string name() const override { return "MhlaAttentionBackward"; }

  SavedVariable q, k, v, mixing, o;
  // NOTE: q_den and k_den where there are any, apart: so the node has less than 1 KiB, and glibc
  // has freed memory of up to that size at hand.
  std::vector<SavedVariable> denominator;
  std::vector<c10::SymInt> sizes, sizes_k;
  std::string options;

 private:
  // NOTE: torch::autograd::collect_next_edges allocates four times for six edges.
  static torch::autograd::edge_list edges_of(const Tensors& t) {
    torch::autograd::edge_list edges(6);
    std::size_t i = 0;
    for (const Tensor* each : {&t.q, &t.k, &t.v, &t.mixing, &t.q_den, &t.k_den}) {
      if (each->defined()) edges[i] = torch::autograd::impl::gradient_edge(*each);
      ++i;
    }
    return edges;
  }
};

void refuse_forward_mode(std::initializer_list<const Tensor*> tensors) {
  // NOTE: usually there is no level, and so no reason to ask the tensors, or what they are views
  // of.
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0) == nullptr) return;
  for (const Tensor* tensor : tensors) {
    TORCH_CHECK(!tensor->defined() || !tensor->_fw_grad(/*level=*/0).defined(),
                "[mhla.attention] forward-mode differentiation is not supported: use backward");
  }
}

Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mixing,
               const OptionalTensor& q_den_in, const OptionalTensor& k_den_in,
               c10::SymIntArrayRef sizes, c10::SymIntArrayRef sizes_k, c10::string_view options) {
  const Tensor q_den = q_den_in.value_or(Tensor()), k_den = k_den_in.value_or(Tensor());
  refuse_forward_mode({&q, &k, &v, &mixing, &q_den, &k_den});
  const auto below_autograd = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::forward(q, k, v, mixing, q_den_in, k_den_in, sizes, sizes_k, options);
  };
  if (!torch::autograd::compute_requires_grad(q, k, v, mixing, q_den, k_den)) {
    return below_autograd();
  }
  const NodePointer node = make_node<AttentionBackward>(Tensors{q, k, v, mixing, q_den, k_den},
                                                        sizes, sizes_k, options);
  Tensor o = below_autograd();
  torch::autograd::set_history(o, node);
  static_cast<AttentionBackward*>(node.get())->o = SavedVariable(o, true);
  return o;
}

Gradients backward(const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& mixing, const Tensor& o, const OptionalTensor& q_den,
                   const OptionalTensor& k_den, c10::SymIntArrayRef sizes,
                   c10::SymIntArrayRef sizes_k, c10::string_view options,
                   std::array<bool, 6> wanted) {
  Gradients d = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::backward(d_o, q, k, v, mixing, o, q_den, k_den, sizes, sizes_k, options, wanted);
  }();
  std::apply(
      [&](const auto&... each) {
        refuse_twice("attention", {each...},
                     {d_o, q, k, v, mixing, o, q_den.value_or(Tensor()), k_den.value_or(Tensor())});
      },
      d);
  return d;
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
              "[mhla] vmap is not supported: give the batch as the first dimension of q, k and v "
              "instead");
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
  m.impl("prefill", torch::CppFunction::makeFromBoxedFunction<&mhla::nn::refuse_vmap>());
  m.impl("step", torch::CppFunction::makeFromBoxedFunction<&mhla::nn::refuse_vmap>());
}
