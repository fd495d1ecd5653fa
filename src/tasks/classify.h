// Image classification: cross entropy with soft targets; top-1, top-5, confusion.
#pragma once

#include "tasks/mixup.h"
#include "tasks/task.h"

namespace mhla::tasks {

// Hits counted batch by batch, on the device, without waiting for it.
class Hits {
 public:
  Hits(std::int64_t classes, c10::Device device);
  void add(const at::Tensor& logits, const at::Tensor& target);  // [B, classes], [B] int64
  void sum(const std::function<void(at::Tensor&)>& over_processes);
  Evaluation report(bool details) const;

 private:
  at::Tensor confusion_;  // [classes, classes] int64, row = true class
  at::Tensor totals_;     // f64: samples, loss, in the first five
};

// Mean over the batch of -sum(target log softmax(logits)), in f32. Targets of int64 are smoothed.
at::Tensor classification_loss(const at::Tensor& logits, const at::Tensor& target,
                               double smoothing);

}  // namespace mhla::tasks
