#include "train/step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "mhla/error.h"
#include "models/layers/recompute.h"

namespace mhla::train {
namespace {

using at::Tensor;

// Libraries choose their algorithms and reserve their memory in the first steps, which a recording
// must not see.
constexpr int kStepsBefore = 3;

data::Batch copy_of(const data::Batch& batch) {
  data::Batch result{.tensors = {}, .samples = batch.samples};
  for (const auto& [name, tensor] : batch.tensors) result.tensors.emplace(name, tensor.clone());
  return result;
}

void fill(const data::Batch& fixed, const data::Batch& batch) {
  if (fixed.samples != batch.samples || fixed.tensors.size() != batch.tensors.size()) {
    fail(ErrorCode::internal, "train", "a batch of ", batch.samples, " samples came to a step of ",
         fixed.samples);
  }
  for (const auto& [name, tensor] : batch.tensors) fixed.tensors.at(name).copy_(tensor, true);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

UpdateStep::UpdateStep(StepParts parts, std::vector<Parameter> parameters)
    : parts_(std::move(parts)),
      parameters_(std::move(parameters)),
      scale_(parts_.options.precision == "f16", parts_.options.loss_scale, parts_.device) {
  const auto options = at::TensorOptions().device(parts_.device);
  loss_sum_ = at::zeros({}, options.dtype(at::kDouble));
  norm_ = at::zeros({}, options.dtype(at::kFloat));
  decide();
}

std::string UpdateStep::why_not() const {
  if (!parts_.processes.alone()) return "several processes share the step";
  if (parts_.options.accumulate > 1) return "train.accumulate seeds its parts one by one";
  if (parts_.options.recompute) {
    return "train.recompute sets the random numbers back within a step";
  }
  return parts_.make_graph ? "" : no_step_graph(parts_.device);
}

void UpdateStep::decide() {
  if (parts_.options.graph == "off") return;
  const std::string why = why_not();
  to_record_ = why.empty();
  if (to_record_) return;
  if (parts_.options.graph == "on") {
    fail(ErrorCode::unsupported, "train", "train.graph: cannot be on: ", why);
  }
  if (parts_.device.is_cuda()) news_ = "no CUDA graph: " + why;
}

void UpdateStep::seed(std::int64_t number, std::int64_t part) const {
  seed_step(parts_.device, static_cast<std::uint64_t>(parts_.options.seed),
            static_cast<std::uint64_t>(number),
            static_cast<std::uint64_t>(part_number(part, parts_.processes.share())));
}

void UpdateStep::run(std::int64_t number, double lr, const std::vector<data::Batch>& batches) {
  seed(number, 0);  // not in compute(): a generator cannot be seeded while work is recorded
  parts_.optimizer->set_lr(lr);
  // The averages' first updates are copies, which a recorded step would repeat forever; the step
  // before shall have done what is recorded.
  const bool steady = !parts_.ema || parts_.ema->averages(number);
  if (to_record_ && runs_ >= kStepsBefore && steady) record(number, batches);
  if (graph_) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) fill(inputs_[i], batches[i]);
    graph_->replay();
  } else {
    compute(number, batches);
  }
  ++runs_;
}

void UpdateStep::record(std::int64_t number, const std::vector<data::Batch>& batches) {
  to_record_ = false;
  for (const data::Batch& batch : batches) inputs_.push_back(copy_of(batch));
  auto graph = parts_.make_graph ? parts_.make_graph() : make_step_graph();
  std::size_t count = 0;
  try {
    count = graph->record([this, number] { compute(number, inputs_); });
  } catch (const std::exception& error) {
    fail(ErrorCode::unsupported, "train", "the step could not be recorded as a CUDA graph (",
         first_line(error.what()), "): train.graph=off goes without");
  }
  graph_ = std::move(graph);
  news_ = "steps are replayed from here on: a CUDA graph of " + std::to_string(count) +
          " operations";
}

void UpdateStep::compute(std::int64_t number, const std::vector<data::Batch>& batches) {
  const TrainOptions& options = parts_.options;
  const double share = 1.0 / static_cast<double>(batches.size());
  for (std::size_t part = 0; part < batches.size(); ++part) {
    if (part > 0) seed(number, static_cast<std::int64_t>(part));
    Tensor loss;
    {
      const Autocast narrow(parts_.device, options.precision);
      const models::RecomputeBlocks blocks(options.recompute);
      loss = parts_.task.loss(parts_.model, batches[part]);
      if (options.recompute && blocks.count() == 0) {
        fail(ErrorCode::unsupported, "train", "train.recompute: the blocks of '", parts_.model.name,
             "' cannot");
      }
    }
    if (part + 1 == batches.size()) parts_.processes.expect_gradients();
    scale_.scaled(batches.size() > 1 ? loss * share : loss).backward();
    loss_sum_.add_(loss.detach().to(at::kDouble), share);
  }
  const at::NoGradGuard no_gradient;
  parts_.processes.average_gradients();
  std::vector<Tensor> gradients;
  for (const Parameter& each : parameters_) {
    if (each.value.grad().defined()) gradients.push_back(each.value.grad());
  }
  const Tensor found_inf = scale_.unscale(gradients);
  if (const Tensor norm = clip_gradients(gradients, options.clip); norm.defined()) {
    norm_.copy_(norm, /*non_blocking=*/true);
  }
  parts_.optimizer->step(found_inf);
  scale_.update();
  drop_gradients(parameters_);
  parts_.model.constrain();
  if (parts_.ema) parts_.ema->update(number + 1);
}

}  // namespace mhla::train
