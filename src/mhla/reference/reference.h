// The reference: short, obvious, scalar. Every other implementation is compared with it.
#pragma once

#include "mhla/core/implementation.h"

namespace mhla::reference {

// T is how the tensors are stored; arithmetic is f64 throughout.
template <typename T>
void forward(const Problem& problem, const ForwardInputs& in, const ForwardOutputs& out,
             const Workspace& workspace);
template <typename T>
void backward(const Problem& problem, const BackwardInputs& in, const BackwardOutputs& out,
              const Workspace& workspace);

// In elements of double.
std::size_t forward_workspace(const Problem& problem);
std::size_t backward_workspace(const Problem& problem);

}  // namespace mhla::reference
