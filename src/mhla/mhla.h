// Multi-Head Linear Attention (arXiv 2601.07832): the operator and everything needed to call it.
//
// Tensors are [B, N, H, D] in natural token order, any strides with a contiguous last dimension.
// Nothing here allocates device memory, synchronises with the host or leaves the caller's stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "mhla/error.h"
#include "mhla/layout.h"
#include "mhla/mixing.h"
#include "mhla/plan.h"
#include "mhla/problem.h"
#include "mhla/state.h"
#include "mhla/tensor_view.h"
#include "mhla/version.h"

namespace mhla {

struct Workspace {
  void* data = nullptr;  // on the problem's device, aligned to kWorkspaceAlignment
  std::size_t bytes = 0;
};
inline constexpr std::size_t kWorkspaceAlignment = 256;  // what cudaMalloc gives, and a cache line

// A depthwise convolution of v on its token grid, zeros outside, that is added to o. NOTE: a CUDA
// device may need v and o as grid_convolution does (token_maps.h).
struct LocalTerm {
  TensorView weight = {};  // [H * dv, taps], row-major over the kernel, of the problem's dtype
  TensorView bias = {};    // [H * dv], or undefined
  std::array<std::int64_t, 3> kernel{1, 1, 1};  // odd extents; a picture has 1 in front
};

struct ForwardInputs {
  TensorView q;  // [B, Nq, H, dk]
  TensorView k;  // [B, Nk, H, dk]
  TensorView v;  // [B, Nk, H, dv]
  // f32 [Mq, Mk] or [H, Mq, Mk]; 1-D layouts may use a leading part of it. Of the inputs' 16-bit
  // type where Plan::reads_narrow_mixing.
  TensorView mixing;
  TensorView q_den = {};  // [B, Nq, H, dk], with Problem::separate_denominator
  TensorView k_den = {};  // [B, Nk, H, dk]
  LocalTerm local = {};   // optional, where Plan::adds_local
};

struct ForwardOutputs {
  TensorView o;  // [B, Nq, H, dv]
};

struct BackwardInputs {
  TensorView q, k, v, mixing;
  TensorView o;    // what forward returned
  TensorView d_o;  // [B, Nq, H, dv]
  TensorView q_den = {}, k_den = {};
};

// Every gradient that is given is overwritten; leave one empty to skip it. d_mixing has the shape
// and dtype of mixing; weights that the problem never reads get a zero gradient.
struct BackwardOutputs {
  TensorView d_q = {}, d_k = {}, d_v = {}, d_mixing = {};
  TensorView d_q_den = {}, d_k_den = {};
};

void forward(const Plan& plan, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream = nullptr);
void backward(const Plan& plan, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream = nullptr);

// The same on the CPU with a workspace of their own: for scripts and tests.
void forward(const Plan& plan, const ForwardInputs& inputs, const ForwardOutputs& outputs);
void backward(const Plan& plan, const BackwardInputs& inputs, const BackwardOutputs& outputs);

}  // namespace mhla
