// Owners, the update of what is owned, and its way to the others.
#include "train/distributed/sharded.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace mhla::train {
namespace {

using at::Tensor;

// One message for all tensors of a type.
void broadcast_all(Processes& processes, const std::vector<Tensor>& tensors, int from) {
  std::map<at::ScalarType, std::vector<Tensor>> by_type;
  for (const Tensor& tensor : tensors) by_type[tensor.scalar_type()].push_back(tensor);
  for (const auto& [type, group] : by_type) {
    std::vector<Tensor> flat;
    for (const Tensor& tensor : group) flat.push_back(tensor.reshape({-1}));
    Tensor message = at::cat(flat);
    processes.broadcast(message, from);
    if (processes.share().rank == from) continue;
    std::int64_t begin = 0;
    for (const Tensor& tensor : group) {
      tensor.copy_(message.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

class ShardedOptimizer : public Optimizer {
 public:
  ShardedOptimizer(const OptimizerOptions& options, std::vector<Parameter> all,
                   Processes& processes)
      : Optimizer(std::move(all)), options_(options), processes_(processes) {
    const int world = processes.share().world;
    shares_.resize(static_cast<std::size_t>(world));
    const std::vector<int> owners = owners_of(parameters(), world);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      shares_[static_cast<std::size_t>(owners[i])].push_back(parameters()[i]);
    }
    own_ = make_optimizer(options, shares_[static_cast<std::size_t>(processes.share().rank)]);
  }

  void set_lr(double lr) override { own_->set_lr(lr); }

  void step(const Tensor& found_inf) override {
    own_->step(found_inf);
    const at::NoGradGuard no_gradient;
    for (std::size_t owner = 0; owner < shares_.size(); ++owner) {
      std::vector<Tensor> values;
      for (const Parameter& each : shares_[owner]) values.push_back(each.value);
      broadcast_all(processes_, values, static_cast<int>(owner));
    }
  }

  // NOTE: the tensors of this process are its own, those of others are copies made here.
  io::StateDict state() const override {
    const at::NoGradGuard no_gradient;
    io::StateDict whole;
    for (std::size_t owner = 0; owner < shares_.size(); ++owner) {
      const bool own = static_cast<int>(owner) == processes_.share().rank;
      const auto other = own ? nullptr : make_optimizer(options_, shares_[owner]);
      io::StateDict part = own ? own_->state() : other->state();
      std::vector<Tensor> tensors;
      for (const auto& [name, tensor] : part) tensors.push_back(tensor);
      broadcast_all(processes_, tensors, static_cast<int>(owner));
      // What all share, such as the number of steps, is this process's own.
      if (own) {
        part.merge(whole);
        whole = std::move(part);
      } else {
        whole.merge(part);
      }
    }
    return whole;
  }

 private:
  OptimizerOptions options_;
  Processes& processes_;
  std::vector<std::vector<Parameter>> shares_;  // by owner
  std::unique_ptr<Optimizer> own_;
};

}  // namespace

std::vector<int> owners_of(const std::vector<Parameter>& parameters, int world) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return parameters[a].value.numel() > parameters[b].value.numel();
  });
  std::vector<std::int64_t> load(static_cast<std::size_t>(world));
  std::vector<int> owners(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    owners[i] = static_cast<int>(least - load.begin());
    *least += parameters[i].value.numel();
  }
  return owners;
}

std::unique_ptr<Optimizer> make_sharded_optimizer(const OptimizerOptions& options,
                                                  std::vector<Parameter> parameters,
                                                  Processes& processes) {
  if (processes.alone()) return make_optimizer(options, std::move(parameters));
  return std::make_unique<ShardedOptimizer>(options, std::move(parameters), processes);
}

}  // namespace mhla::train
