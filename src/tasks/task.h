// What one training step and one evaluation mean; the trainer knows no task by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "io/config.h"
#include "models/model.h"

namespace mhla::tasks {

enum class Split { train, test };

struct LoaderRequest {
  Split split = Split::train;
  std::int64_t batch = 0;  // samples, of all processes
  std::uint64_t seed = 0;
  data::Share share{};
};

// Which step of training it is: random numbers of a task depend on nothing else.
struct Step {
  std::uint64_t seed = 0;
  // The part of its batch, among those of all processes.
  std::int64_t number = 0, part = 0;
};

// One sample and what the network made of it.
struct Example {
  std::string png;  // the bytes of a picture
  std::string label, predicted;
};

struct Evaluation {
  std::vector<std::pair<std::string, double>> numbers;  // the first one is what runs are ranked by
  std::string json;  // everything, for `mhla eval --json`: an object
  std::string text;  // the same for people
  std::vector<Example> examples{};
};

struct EvaluateRequest {
  c10::Device device = c10::kCPU;
  // Adds up what the processes counted; nothing to do with one process.
  std::function<void(at::Tensor&)> sum{};
  bool details = false;  // also what takes room: per class, confusion
  std::int64_t examples = 0;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::unique_ptr<data::Loader> loader(const LoaderRequest& request) = 0;
  // What numbers of the host decide, such as the share of mixup: the batch that loss() takes, of
  // the same shapes in every step. On the model's device, where nothing random is drawn.
  virtual data::Batch prepared(const data::Batch& batch, const Step&) const { return batch; }
  // The mean over the batch. All that differs from step to step are the batch, the weights and
  // random numbers of the device: on a GPU the call may be recorded and replayed.
  virtual at::Tensor loss(models::Model& model, const data::Batch& batch) = 0;
  // One pass over the loader with the model as it is, in eval mode.
  virtual Evaluation evaluate(models::Model& model, data::Loader& loader,
                              const EvaluateRequest& request) const = 0;
};

// Reads the sections `task` and `data` of the configuration.
using TaskFactory = std::function<std::unique_ptr<Task>(io::Config& config)>;

// At namespace scope of the task's file.
struct TaskName {
  TaskName(const char* name, TaskFactory factory);
};

// The task that `task.name` says; unknown names are answered with the nearest.
std::unique_ptr<Task> make_task(io::Config& config);

// The batch with its tensors on `device`, copied without waiting where they are pinned.
data::Batch to_device(const data::Batch& batch, c10::Device device);

}  // namespace mhla::tasks
