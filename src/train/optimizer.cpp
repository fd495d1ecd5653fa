#include "train/optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "mhla/error.h"

namespace mhla::train {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

bool keeps(const std::string& name, const Tensor& value, const std::vector<std::string>& no_decay) {
  if (value.dim() <= 1 || name.ends_with(".bias")) return true;
  return std::ranges::any_of(no_decay, [&](const std::string& each) {
    return name == each || name.ends_with("." + each);
  });
}

// The parameters of one kind that have a gradient in this step.
struct Group {
  Tensors values, gradients, first, second, steps;
};

class AdamW : public Optimizer {
 public:
  AdamW(const OptimizerOptions& options, std::vector<Parameter> given)
      : Optimizer(std::move(given)), options_(options) {
    if (options.betas.size() != 2) {
      fail("train", "train.optimizer.betas: expected 2 numbers, got ", options.betas.size());
    }
    for (const Parameter& each : parameters()) {
      mean_.push_back(at::zeros_like(each.value));
      square_.push_back(at::zeros_like(each.value));
    }
    if (!parameters().empty()) {
      count_ = at::zeros({}, parameters().front().value.options().dtype(at::kFloat));
    }
  }

  void step(const Tensor& found_inf) override {
    if (parameters().empty()) return;
    // A step that is left out does not count.
    found_inf.defined() ? count_.add_(1 - found_inf.reshape({})) : count_.add_(1);
    for (const bool decayed : {true, false}) {
      Group group;
      for (std::size_t i = 0; i < parameters().size(); ++i) {
        const Parameter& each = parameters()[i];
        if (each.decayed != decayed || !each.value.grad().defined()) continue;
        group.values.push_back(each.value);
        group.gradients.push_back(each.value.grad());
        group.first.push_back(mean_[i]);
        group.second.push_back(square_[i]);
        group.steps.push_back(count_);
      }
      if (group.values.empty()) continue;
      at::_fused_adamw_(group.values, group.gradients, group.first, group.second, {}, group.steps,
                        lr(), options_.betas[0], options_.betas[1],
                        decayed ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false,
                        /*maximize=*/false, /*grad_scale=*/{},
                        found_inf.defined() ? std::optional(found_inf) : std::nullopt);
    }
  }

  io::StateDict state() const override {
    io::StateDict result;
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      result.emplace(parameters()[i].name + ".exp_avg", mean_[i]);
      result.emplace(parameters()[i].name + ".exp_avg_sq", square_[i]);
    }
    if (count_.defined()) result.emplace("step", count_);
    return result;
  }

 private:
  OptimizerOptions options_;
  Tensors mean_, square_;
  Tensor count_;  // updates so far, on the device
};

class Sgd : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, std::vector<Parameter> given)
      : Optimizer(std::move(given)), options_(options) {
    if (options.nesterov && !(options.momentum > 0)) {
      fail("train", "train.optimizer.nesterov: needs a momentum above 0");
    }
    for (const Parameter& each : parameters()) momentum_.push_back(at::zeros_like(each.value));
  }

  void step(const Tensor& found_inf) override {
    for (const bool decayed : {true, false}) {
      Group group;
      for (std::size_t i = 0; i < parameters().size(); ++i) {
        const Parameter& each = parameters()[i];
        if (each.decayed != decayed || !each.value.grad().defined()) continue;
        group.values.push_back(each.value);
        group.gradients.push_back(each.value.grad());
        group.first.push_back(momentum_[i]);
      }
      if (group.values.empty()) continue;
      // The first momentum is the gradient: with a buffer of zeros that is what every step does.
      at::_fused_sgd_(group.values, group.gradients, group.first,
                      decayed ? options_.weight_decay : 0.0, options_.momentum, lr(),
                      /*dampening=*/0.0, options_.nesterov, /*maximize=*/false,
                      /*is_first_step=*/false, /*grad_scale=*/{},
                      found_inf.defined() ? std::optional(found_inf) : std::nullopt);
    }
  }

  io::StateDict state() const override {
    io::StateDict result;
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      result.emplace(parameters()[i].name + ".momentum", momentum_[i]);
    }
    return result;
  }

 private:
  OptimizerOptions options_;
  Tensors momentum_;
};

}  // namespace

Optimizer::Optimizer(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  if (parameters_.empty()) return;
  const c10::Device device = parameters_.front().value.device();
  // The kernels read f32 on a GPU; on a CPU the number is taken as it is.
  lr_ = at::zeros(
      {}, at::TensorOptions().device(device).dtype(device.is_cpu() ? at::kDouble : at::kFloat));
}

void Optimizer::set_lr(double lr) {
  if (lr_.defined()) lr_.fill_(lr);
}

std::vector<Parameter> trained_parameters(const torch::nn::Module& module,
                                          const std::vector<std::string>& no_decay) {
  std::vector<Parameter> result;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    result.push_back({item.key(), item.value(), !keeps(item.key(), item.value(), no_decay)});
  }
  return result;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<Parameter> parameters) {
  if (options.name == "adamw") return std::make_unique<AdamW>(options, std::move(parameters));
  if (options.name == "sgd") return std::make_unique<Sgd>(options, std::move(parameters));
  fail("train", "train.optimizer.name: unknown optimiser '", options.name, "'");
}

Tensor clip_gradients(const Tensors& gradients, double most) {
  if (gradients.empty()) return {};
  const at::NoGradGuard no_gradient;
  const Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
  if (most > 0) {
    const Tensor factor = (most / (norm + 1e-6)).clamp_max(1.0);
    at::_foreach_mul_(gradients, factor);
  }
  return norm;
}

void drop_gradients(const std::vector<Parameter>& parameters) {
  for (const Parameter& each : parameters) each.value.mutable_grad().reset();
}

}  // namespace mhla::train
