// What layers do to tokens beside the operator: a depthwise convolution on the token grid and the
// rotary turn. Only for CUDA devices, where LibTorch's own ways move several times the memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "mhla/tensor_view.h"

namespace mhla {

// output = addend + bias + sum over taps of weight * input, zeros outside the grid.
struct GridConvolution {
  TensorView input, output, addend;  // [B, N, H, D], natural token order; addend may be undefined
  TensorView weight;                 // [H * D, taps], row-major over the kernel
  TensorView bias;                   // [H * D], or undefined
  std::array<std::int64_t, 3> grid{1, 1, 1};    // tokens per axis; a picture has 1 in front
  std::array<std::int64_t, 3> kernel{1, 1, 1};  // odd extents
  bool transposed = false;  // taps in the opposite order: the gradient of the input
};

// Gradients of its weight and bias, added up over a part of the tokens each.
struct GridConvolutionGradient {
  TensorView input, d_output;  // [B, N, H, D]
  TensorView sums;             // result: f32 [parts, taps + 1, H * D], the bias last
  std::array<std::int64_t, 3> grid{1, 1, 1};
  std::array<std::int64_t, 3> kernel{1, 1, 1};
};

// Pairs of channels of input turn by the angles of their token.
struct RotaryTurn {
  TensorView input, output;  // [B, N, H, D]
  TensorView cos, sin;       // f32 [N, D / 2]
  bool neighbours = true;    // pair j is the channels 2j and 2j + 1, else j and j + D / 2
  bool back = false;         // the other way round: the gradient of the input
};

// Why a call would be refused; empty if it is taken.
std::string refusal(const GridConvolution& call);
std::string refusal(const GridConvolutionGradient& call);
std::string refusal(const RotaryTurn& call);

// Throw where refusal() is not empty.
void grid_convolution(const GridConvolution& call, Stream stream);
void grid_convolution_gradient(const GridConvolutionGradient& call, Stream stream);
void rotary_turn(const RotaryTurn& call, Stream stream);

// While a CUDA graph is recorded, memory made on its stream belongs to the graph.
bool is_capturing(Stream stream);

}  // namespace mhla
