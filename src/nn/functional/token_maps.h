// Convolution and rotary turn by one kernel each on a GPU, with gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace mhla::nn::functional {

// addend + convolution; see grid_convolution of layers.h. Nothing where LibTorch's operations have
// to do it: on other devices, while a compiler traces, with widths that are not whole chunks.
std::optional<at::Tensor> convolve_by_kernel(const at::Tensor& v, at::IntArrayRef grid,
                                             const at::Tensor& weight,
                                             const std::optional<at::Tensor>& bias,
                                             const std::optional<at::Tensor>& addend);

// x [B, N, H, D] turned by f32 tables [N, ..., D/2]; pairs of neighbours, or of halves.
std::optional<at::Tensor> turn_by_kernel(const at::Tensor& x, const at::Tensor& cos,
                                         const at::Tensor& sin, bool neighbours);

// Whether a tensor has memory of its own that a kernel may read, and no tangent (forward-mode
// differentiation), which a kernel would lose.
bool is_plain_cuda(const at::Tensor& x);

// x as kernels read rows: contiguous, from a multiple of 16 bytes on. Gradients come in any form.
at::Tensor aligned(const at::Tensor& x);

}  // namespace mhla::nn::functional
