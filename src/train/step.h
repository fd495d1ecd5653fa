// One update of the weights: loss, backward, average over the processes, clip, optimiser,
// constraint, averaged weights. Where it can it is recorded after a few times and replayed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "tasks/task.h"
#include "train/ema.h"
#include "train/graph/graph.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/precision.h"
#include "train/processes.h"

namespace mhla::train {

struct StepParts {
  const TrainOptions& options;
  c10::Device device;
  models::Model& model;
  tasks::Task& task;
  Processes& processes;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Ema> ema;  // or null
  // Empty: what the device has.
  std::function<std::unique_ptr<StepGraph>()> make_graph = {};
};

// The number of a process's part of a batch among those of all: the same samples meet the same
// random numbers, whether processes or accumulation divide a batch.
inline std::int64_t part_number(std::int64_t part, const data::Share& share) {
  return part * share.world + share.rank;
}

class UpdateStep {
 public:
  UpdateStep(StepParts parts, std::vector<Parameter> parameters);
  UpdateStep(const UpdateStep&) = delete;
  UpdateStep& operator=(const UpdateStep&) = delete;

  // Step `number`, counted from 0, with one batch for each part of it; the batches are prepared and
  // on the device. Does not wait for the device.
  void run(std::int64_t number, double lr, const std::vector<data::Batch>& batches);

  // Sum of the losses since clear_loss(), and the norm of the last gradients. On the device. In f64
  // the sum of f32 losses is exact, whatever the order.
  at::Tensor& loss_sum() { return loss_sum_; }
  void clear_loss() { loss_sum_.zero_(); }
  const at::Tensor& norm() const { return norm_; }

  const Optimizer& optimizer() const { return *parts_.optimizer; }
  const LossScale& scale() const { return scale_; }
  Ema* ema() { return parts_.ema.get(); }

  // What there is to say about the graph, once: how large it is, or why there is none.
  std::string take_news() { return std::exchange(news_, {}); }

 private:
  std::string why_not() const;
  void decide();
  void seed(std::int64_t number, std::int64_t part) const;
  void record(std::int64_t number, const std::vector<data::Batch>& batches);
  void compute(std::int64_t number, const std::vector<data::Batch>& batches);

  StepParts parts_;
  std::vector<Parameter> parameters_;
  LossScale scale_;
  at::Tensor loss_sum_, norm_;
  bool to_record_ = false;
  int runs_ = 0;
  std::vector<data::Batch> inputs_;  // what the graph reads
  std::unique_ptr<StepGraph> graph_;
  std::string news_;
};

}  // namespace mhla::train
