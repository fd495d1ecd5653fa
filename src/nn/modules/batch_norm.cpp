// Mean and variance as two sums over processes, with their gradients.
#include "nn/modules/batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

namespace mhla::nn {

// The total everywhere. Every process's result depends on every `local`, so the gradient of one is
// the sum of what arrives at the totals.
at::Tensor BatchNorm::summed(const at::Tensor& local) const {
  at::Tensor total = local.detach().clone();
  sum(total);
  if (!local.requires_grad()) return total;
  at::Tensor result = total + (local - local.detach());  // the second term is zero
  result.register_hook([sum = sum](const at::Tensor& gradient) {
    at::Tensor all = gradient.clone();
    sum(all);
    return all;
  });
  return result;
}

at::Tensor BatchNorm::forward(const at::Tensor& x) {
  if (!is_training() || !sum) return torch::nn::BatchNorm2dImpl::forward(x);
  constexpr at::IntArrayRef::value_type kChannels = 1;
  const at::Tensor wide = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  // The count travels with the sums: processes may hold different numbers of pictures.
  const auto own = static_cast<double>(x.numel() / x.size(kChannels));
  const at::Tensor sums = summed(
      at::cat({wide.sum({0, 2, 3}), at::full({1}, own, wide.options())}));
  const at::Tensor count = sums.narrow(0, x.size(kChannels), 1).detach();
  const at::Tensor mean = sums.narrow(0, 0, x.size(kChannels)) / count;
  const at::Tensor centred = wide - mean.view({1, -1, 1, 1});
  const at::Tensor variance = summed((centred * centred).sum({0, 2, 3})) / count;
  {
    const at::NoGradGuard no_gradient;
    const double momentum = options.momentum().value();
    const at::Tensor unbiased = variance * (count / (count - 1));
    running_mean.lerp_(mean.to(running_mean.scalar_type()), momentum);
    running_var.lerp_(unbiased.to(running_var.scalar_type()), momentum);
    num_batches_tracked += 1;
  }
  const at::Tensor scale = (variance + options.eps()).rsqrt() * weight;
  return (centred * scale.view({1, -1, 1, 1}) + bias.view({1, -1, 1, 1})).to(x.scalar_type());
}

void share_batch_norms(torch::nn::Module& module, const SumOverProcesses& sum) {
  module.apply([&](torch::nn::Module& each) {
    if (auto* norm = dynamic_cast<BatchNorm*>(&each)) norm->sum = sum;
  });
}

}  // namespace mhla::nn
