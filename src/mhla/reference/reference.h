// The reference: short, obvious, scalar. Every other implementation is compared with it.
#pragma once

#include "mhla/core/implementation.h"

namespace mhla::reference {

// Storage type T of the tensors, arithmetic type A (f64 for f64, f32 otherwise).
template <typename T, typename A>
void forward(const Problem& problem, const ForwardInputs& in, const ForwardOutputs& out,
             const Workspace& workspace);
template <typename T, typename A>
void backward(const Problem& problem, const BackwardInputs& in, const BackwardOutputs& out,
              const Workspace& workspace);

// In elements of A.
std::size_t forward_workspace(const Problem& problem);
std::size_t backward_workspace(const Problem& problem);

}  // namespace mhla::reference
