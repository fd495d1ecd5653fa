// What a step computes in: autocast, loss scaling, TF32, determinism.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "io/torch/weights.h"
#include "train/options.h"

namespace mhla::train {

c10::Device device_of(const std::string& name);  // "auto", "cpu", "cuda", "cuda:1"

// Switches of the whole process.
void set_precision(const TrainOptions& options);

// The generators of the CPU and of `device` begin anew: random numbers of a step depend on the
// seed, the step and the part of its batch alone, so that a resumed run draws the same ones.
void seed_step(c10::Device device, std::uint64_t seed, std::uint64_t step, std::uint64_t part);

// While it lives, products are computed in bf16 or f16; "f32" and "f64": nothing changes.
class Autocast {
 public:
  Autocast(c10::Device device, const std::string& precision);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast();

 private:
  c10::DeviceType type_;
  bool on_;
  bool was_on_ = false;
};

// f16: the loss is scaled up so that small gradients do not vanish, and a step whose gradients
// overflow is left out. Numbers stay on the device. Off, it does nothing.
class LossScale {
 public:
  LossScale(bool on, double start, c10::Device device);
  at::Tensor scaled(const at::Tensor& loss) const;
  // Takes the scale out of the gradients. Returns what Optimizer::step takes.
  at::Tensor unscale(const std::vector<at::Tensor>& gradients);
  void update();                // after the optimiser
  io::StateDict state() const;  // empty when off

 private:
  at::Tensor scale_, growth_, found_inf_;
};

}  // namespace mhla::train
