// The checks every call passes once, at the public entry, before anything is touched.
#pragma once

#include "mhla/mhla.h"

namespace mhla {

enum class Access { read, write };

// A [B, N, H, D] tensor of the problem's dtype and device with a contiguous last dimension.
void check_tensor(const char* where, const char* label, const TensorView& view,
                  const Problem& problem, std::int64_t tokens, std::int64_t width, Access access);

// Throws when the tensor cannot be addressed: null data, negative strides, offsets past 64 bits.
void check_addressable(const char* where, const char* label, const TensorView& view, Access access);

void check_forward(const Plan& plan, const ForwardInputs& inputs, const ForwardOutputs& outputs,
                   const Workspace& workspace);
void check_backward(const Plan& plan, const BackwardInputs& inputs, const BackwardOutputs& outputs,
                    const Workspace& workspace);

}  // namespace mhla
