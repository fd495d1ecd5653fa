#include "models/layers/recompute.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

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

struct Call : torch::CustomClassHolder {
  Call(std::function<Tensor(const Tensor&)> given, c10::Device device)
      : block(std::move(given)), random(device), autocast(device.type()) {}
  std::function<Tensor(const Tensor&)> block;
  RandomState random;
  AutocastState autocast;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::function<Tensor(const Tensor&)>& block) {
    auto call = c10::make_intrusive<Call>(block, x.device());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward({x});
    return call->block(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& d_output) {
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    const Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    const RandomState random_before(x.device());
    const AutocastState autocast_before(x.device().type());
    call.random.restore();
    call.autocast.set();
    Tensor y;
    {
      const at::AutoGradMode with_gradient(true);
      at::autocast::increment_nesting();
      y = call.block(x);
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    }
    autocast_before.set();
    random_before.restore();
    torch::autograd::backward({y}, {d_output[0]});
    return {x.grad(), Tensor()};
  }
};

thread_local bool t_on = false;
thread_local std::int64_t t_count = 0;

}  // namespace

RecomputeBlocks::RecomputeBlocks(bool on) : before_(t_on), count_before_(t_count) { t_on = on; }
RecomputeBlocks::~RecomputeBlocks() { t_on = before_; }
bool RecomputeBlocks::on() { return t_on; }
std::int64_t RecomputeBlocks::count() const { return t_count - count_before_; }

Tensor recomputed(const Tensor& x, const std::function<Tensor(const Tensor&)>& block) {
  if (!t_on || !at::GradMode::is_enabled() || !x.requires_grad()) return block(x);
  ++t_count;
  return Recompute::apply(x, block);
}

}  // namespace mhla::models
