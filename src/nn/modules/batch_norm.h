// Batch normalisation of pictures, with statistics of all processes that train together.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>

#include <functional>

namespace mhla::nn {

using SumOverProcesses = std::function<void(at::Tensor&)>;  // in place

// torch::nn::BatchNorm2d until share_batch_norms() gives it others to add up with.
class BatchNorm : public torch::nn::BatchNorm2dImpl {
 public:
  explicit BatchNorm(std::int64_t channels)
      : torch::nn::BatchNorm2dImpl(torch::nn::BatchNormOptions(channels)) {}

  at::Tensor forward(const at::Tensor& x);  // [B, C, H, W]

  SumOverProcesses sum;

 private:
  at::Tensor summed(const at::Tensor& local) const;
};

// Every BatchNorm of `module` takes its training statistics over all processes.
void share_batch_norms(torch::nn::Module& module, const SumOverProcesses& sum);

}  // namespace mhla::nn
