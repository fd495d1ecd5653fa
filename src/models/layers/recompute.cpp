#include "models/layers/recompute.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <mutex>

namespace mhla::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The generators of the CPU and of the device of `x`.
class RandomState {
 public:
  explicit RandomState(c10::Device device) : device_(device) {
    host_ = state_of(c10::kCPU);
    if (!device.is_cpu()) other_ = state_of(device);
  }
  void restore() const {
    set(c10::kCPU, host_);
    if (other_.defined()) set(device_, other_);
  }

 private:
  static Tensor state_of(c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void set(c10::Device device, const Tensor& state) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }

  c10::Device device_;
  Tensor host_, other_;
};

// Autocast as it was in the forward pass; the backward pass runs without it.
class AutocastState {
 public:
  explicit AutocastState(c10::DeviceType type)
      : type_(type),
        on_(at::autocast::is_autocast_enabled(type)),
        dtype_(at::autocast::get_autocast_dtype(type)) {}
  void set() const {
    at::autocast::set_autocast_enabled(type_, on_);
    at::autocast::set_autocast_dtype(type_, dtype_);
  }

 private:
  c10::DeviceType type_;
  bool on_;
  at::ScalarType dtype_;
};

// NOTE: weights rounded without gradients must not be found by a pass that needs them.
class NoRoundedWeights {
 public:
  NoRoundedWeights() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  NoRoundedWeights(const NoRoundedWeights&) = delete;
  NoRoundedWeights& operator=(const NoRoundedWeights&) = delete;
  ~NoRoundedWeights() { at::autocast::set_autocast_cache_enabled(before_); }

 private:
  bool before_;
};

struct Call : torch::CustomClassHolder {
  Call(Block given, c10::Device device)
      : block(std::move(given)), random(device), autocast(device.type()) {}
  Block block;
  RandomState random;
  AutocastState autocast;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList inputs, const Block& block) {
    auto call = c10::make_intrusive<Call>(block, inputs[0].device());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(inputs.vec());
    const NoRoundedWeights plain;
    return call->block(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& d_output) {
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    variable_list inputs = context->get_saved_variables();
    for (Tensor& input : inputs) input = input.detach().set_requires_grad(input.requires_grad());
    const c10::Device device = inputs[0].device();
    const RandomState random_before(device);
    const AutocastState autocast_before(device.type());
    call.random.restore();
    call.autocast.set();
    Tensor y;
    {
      const at::AutoGradMode with_gradient(true);
      const NoRoundedWeights plain;
      y = call.block(inputs);
    }
    autocast_before.set();
    random_before.restore();
    torch::autograd::backward({y}, {d_output[0]});
    variable_list gradients;
    for (const Tensor& input : inputs) gradients.push_back(input.grad());
    gradients.emplace_back();  // of the block
    return gradients;
  }
};

thread_local bool t_on = false;
thread_local std::int64_t t_count = 0;

}  // namespace

RecomputeBlocks::RecomputeBlocks(bool on) : before_(t_on), count_before_(t_count) { t_on = on; }
RecomputeBlocks::~RecomputeBlocks() { t_on = before_; }
bool RecomputeBlocks::on() { return t_on; }
std::int64_t RecomputeBlocks::count() const { return t_count - count_before_; }

Tensor recomputed(const std::vector<Tensor>& inputs, const Block& block) {
  const bool needed = std::ranges::any_of(inputs,
                                          [](const Tensor& x) { return x.requires_grad(); });
  if (!t_on || !at::GradMode::is_enabled() || !needed) return block(inputs);
  ++t_count;
  return Recompute::apply(at::TensorList(inputs), block);
}

void recompute_block(Residual& x, const std::vector<Tensor>& others, const ResidualBlock& block) {
  if (!t_on) return block(x, others);  // what was added last is still to be summed
  std::vector<Tensor> inputs = {x.value()};
  inputs.insert(inputs.end(), others.begin(), others.end());
  x = Residual(recomputed(inputs, [block](const std::vector<Tensor>& given) {
    Residual inner(given[0]);
    block(inner, {given.begin() + 1, given.end()});
    return inner.value();
  }));
}

}  // namespace mhla::models
