#include "models/layers/init.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace mhla::models::init {
namespace {

bool skipped(const at::Tensor& tensor) { return !tensor.defined() || tensor.is_meta(); }

double fan_in(const at::Tensor& weight) {
  return static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
}

}  // namespace

void trunc_normal(const at::Tensor& tensor, double std) {
  if (skipped(tensor)) return;
  const at::NoGradGuard no_gradient;
  // The inverse of the cumulative distribution, of numbers between those of -2 and 2.
  const double edge = std::erf(2.0 / (std * std::sqrt(2.0)));
  tensor.uniform_(-edge, edge).erfinv_().mul_(std * std::sqrt(2.0)).clamp_(-2.0, 2.0);
}

void normal(const at::Tensor& tensor, double std) {
  if (skipped(tensor)) return;
  const at::NoGradGuard no_gradient;
  tensor.normal_(0.0, std);
}

void xavier(const at::Tensor& tensor, double gain) {
  if (skipped(tensor)) return;
  const at::NoGradGuard no_gradient;
  const double bound = gain *
                       std::sqrt(6.0 / (fan_in(tensor) + static_cast<double>(tensor.size(0))));
  tensor.uniform_(-bound, bound);
}

void torch_default(const at::Tensor& weight, const at::Tensor& bias) {
  if (skipped(weight)) return;
  const at::NoGradGuard no_gradient;
  const double bound = 1.0 / std::sqrt(fan_in(weight));
  weight.uniform_(-bound, bound);
  if (bias.defined()) bias.uniform_(-bound, bound);
}

void constant(const at::Tensor& tensor, double value) {
  if (skipped(tensor)) return;
  const at::NoGradGuard no_gradient;
  tensor.fill_(value);
}

void identity_kernel(const at::Tensor& weight, const at::Tensor& bias) {
  if (skipped(weight)) return;
  const at::NoGradGuard no_gradient;
  weight.zero_();
  at::Tensor centre = weight;
  while (centre.dim() > 1) centre = centre.select(1, centre.size(1) / 2);
  centre.fill_(1.0);
  constant(bias, 0.0);
}

}  // namespace mhla::models::init
