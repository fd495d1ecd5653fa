// The processes that train together. One process needs nothing of this.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "data/loader.h"

namespace mhla::train {

// Every process makes the same calls in the same order.
class Processes {
 public:
  virtual ~Processes() = default;
  virtual data::Share share() const { return {}; }
  bool first() const { return share().rank == 0; }
  bool alone() const { return share().world == 1; }

  virtual void sum(at::Tensor&) {}                      // over all processes, in place
  virtual void broadcast(at::Tensor&, int /*from*/) {}  // the values of one process everywhere
  virtual void wait_for_all() {}

  // Gradients: `watch` once; `expect` before the backward pass that completes them, so that they
  // travel while it runs; `average` afterwards makes every .grad the mean over the processes.
  virtual void watch(const std::vector<at::Tensor>& /*parameters*/) {}
  virtual void expect_gradients() {}
  virtual void average_gradients() {}
};

// Those that the environment names (torchrun, `mhla train --processes`); alone where it names none.
// The device gets its number on this machine: GPU i for the i-th local process.
std::unique_ptr<Processes> join_processes(c10::Device& device);

}  // namespace mhla::train
