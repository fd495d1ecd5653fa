// AdamW and SGD by LibTorch's fused kernels: one launch for many parameters, on a CPU one loop
// each.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/torch/weights.h"
#include "train/options.h"

namespace mhla::train {

struct Parameter {
  std::string name;
  at::Tensor value;
  bool decayed = true;
};

// Those that have a gradient. Not decayed: at most one axis, "*.bias", and names of `no_decay`.
std::vector<Parameter> trained_parameters(const torch::nn::Module& module,
                                          const std::vector<std::string>& no_decay);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Of the steps from now on. It is kept on the device, where a recorded step() finds it.
  virtual void set_lr(double lr);
  // One update from the parameters' .grad; one without a gradient stays. `found_inf`, where
  // defined: a number on the device, and unless it is 0 nothing changes.
  virtual void step(const at::Tensor& found_inf) = 0;

  // What a checkpoint holds; the tensors are the optimiser's own.
  virtual io::StateDict state() const = 0;

 protected:
  explicit Optimizer(std::vector<Parameter> parameters);
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const at::Tensor& lr() const { return lr_; }  // a number; undefined without parameters

 private:
  std::vector<Parameter> parameters_;
  at::Tensor lr_;
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<Parameter> parameters);

// The norm of all gradients together, on their device; they are scaled down where it is above
// `most` (0: only measured).
at::Tensor clip_gradients(const std::vector<at::Tensor>& gradients, double most);

void drop_gradients(const std::vector<Parameter>& parameters);

}  // namespace mhla::train
