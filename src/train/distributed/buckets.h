// Gradients averaged over processes while the backward pass is still making the others.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <vector>

namespace c10d {
class Backend;
}

namespace mhla::train {

class GradientBuckets {
 public:
  // Parameters in the order of the module: the last ones get their gradients first.
  GradientBuckets(c10::intrusive_ptr<c10d::Backend> group,
                  const std::vector<at::Tensor>& parameters);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;
  ~GradientBuckets();

  // The next backward pass completes the gradients: full buckets travel at once.
  void expect();

  // Sends what is left and waits: every .grad becomes the mean over the processes. A parameter
  // without a gradient counts as zero here and stays without one.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the hooks on the parameters point to it
};

}  // namespace mhla::train
