// The one training loop: batch, loss, backward, clip, update, constraint, average, report, save.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "models/model.h"
#include "tasks/task.h"
#include "train/graph/graph.h"
#include "train/options.h"
#include "train/processes.h"

namespace mhla::train {

struct Job {
  TrainOptions options;
  std::string folder;   // of the run; it exists
  bool resume = false;  // from the newest checkpoint in it, where there is one
  c10::Device device = c10::kCPU;
  std::shared_ptr<models::Model> model;                           // on the device
  std::function<std::shared_ptr<models::Model>()> another_model;  // of the same kind
  tasks::Task* task = nullptr;
  Processes* processes = nullptr;
  std::function<std::unique_ptr<StepGraph>()> make_graph = {};  // for tests; empty: the device's
};

struct Outcome {
  std::int64_t step = 0, steps = 0;
  int signal = 0;                               // that ended the run before its last step
  std::optional<tasks::Evaluation> evaluation;  // the last one of this process
};

Outcome train(const Job& job);

}  // namespace mhla::train
