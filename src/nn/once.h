// Nodes of our own in autograd's graph, and the one that refuses double backward.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace mhla::nn {

// Older LibTorch shares nodes by std::shared_ptr and has a function that deletes deep graphs.
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename T, typename Pointer = NodePointer, typename... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new T(std::forward<Arguments>(arguments)...),
                   [](auto* each) { deleteNode(each); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

// For `gradients` that kernels computed from `inputs`. They have no history, so a gradient of them
// would be wrong in silence: they get a node that throws when it is reached.
inline void refuse_twice(const char* where, const torch::autograd::variable_list& gradients,
                         const torch::autograd::variable_list& inputs) {
  if (!torch::autograd::compute_requires_grad(inputs)) return;
  const NodePointer node = make_node<torch::autograd::Error>(
      std::string("[mhla.") + where +
          "] double backward is not supported: the gradient of the operator's gradient was asked "
          "for (create_graph=True); detach the first gradient",
      torch::autograd::collect_next_edges(inputs));
  torch::autograd::set_history(gradients, node);
}

}  // namespace mhla::nn
