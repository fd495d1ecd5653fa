// Attention plus a convolution of v: by one kernel where there is one, otherwise by two.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include "nn/functional/layers.h"
#include "nn/operators.h"

namespace mhla::nn {
namespace {

// Whether kernels may be handed the memory of this tensor, with nobody else to be told: it is not a
// tracer's, and no gradient is recorded through it.
bool is_plain(const at::Tensor& x) {
  using c10::DispatchKey;
  if (!x.defined()) return true;
  const c10::DispatchKeySet keys = x.key_set();
  const bool traced = keys.has(DispatchKey::Python) || keys.has(DispatchKey::FuncTorchBatched) ||
                      keys.has(DispatchKey::FuncTorchGradWrapper) ||
                      keys.has(DispatchKey::Functionalize);
  if (traced || !(x.is_cpu() || x.is_cuda())) return false;
  const bool recorded = at::GradMode::is_enabled() && x.requires_grad();
  return !recorded && !x._fw_grad(/*level=*/0).defined();
}

}  // namespace

at::Tensor ops::forward_and_local(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& mixing, const OptionalTensor& q_den,
                                  const OptionalTensor& k_den, at::IntArrayRef sizes,
                                  c10::string_view options, const at::Tensor& weight,
                                  const OptionalTensor& bias) {
  const at::Tensor qd = q_den.value_or(at::Tensor()), kd = k_den.value_or(at::Tensor());
  const at::Tensor b = bias.value_or(at::Tensor());
  bool plain = !at::autocast::is_autocast_enabled(q.device().type());
  for (const at::Tensor* x : {&q, &k, &v, &mixing, &qd, &kd, &weight, &b}) {
    plain = plain && is_plain(*x);
  }
  if (plain) {
    const OptionalTensor done = forward_with_local(
        {q, k, v, mixing, qd, kd}, {.sizes = sizes, .sizes_k = {}, .options = options}, weight, b);
    if (done) return *done;
  }
  const std::vector<c10::SymInt> grid(sizes.begin(), sizes.end());
  const at::ScalarType given = mixing.scalar_type();
  const bool low = given == at::kBFloat16 || given == at::kHalf;
  return functional::grid_convolution(
      v, sizes, weight, bias,
      ops::forward(q, k, v, low ? mixing.to(at::kFloat) : mixing, q_den, k_den, grid,
                   std::vector<c10::SymInt>(), options));
}

}  // namespace mhla::nn

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def(
      "forward_and_local(Tensor q, Tensor k, Tensor v, Tensor mixing, Tensor? q_den, "
      "Tensor? k_den, int[] sizes, str options, Tensor weight, Tensor? bias=None) -> Tensor",
      TORCH_FN(mhla::nn::ops::forward_and_local));
}
