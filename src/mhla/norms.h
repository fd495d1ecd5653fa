// Norms with what stands around them in a network, in one pass over the tokens. Only for CUDA
// devices, where LibTorch's own ways read and write the tokens once for each step.
#pragma once

#include <cstdint>
#include <string>

#include "mhla/problem.h"
#include "mhla/tensor_view.h"

namespace mhla {

// sum = x + gate * branch
// out = norm(sum) * weight + bias, times 1 + scale, plus shift
// Statistics are f32. Tokens are rows: the last dimension is contiguous. Where a tensor may be
// undefined, its step is left out.
struct RowNorm {
  TensorView x;             // [B, N, C]
  TensorView branch;        // [B, N, C], of the type of `out`; may be undefined
  TensorView gate;          // [B, C], of the type of `out`; or undefined
  TensorView weight, bias;  // [C], of any type; or undefined
  TensorView scale, shift;  // [B, C], of the type of `out`; both or none
  TensorView sum;           // result: [B, N, C], of the type of `x`; undefined without a branch
  TensorView out;           // result: [B, N, C], of the type of `x`, or 16-bit where `x` is f32
  TensorView statistics;    // result: f32 [B, N, 2], mean and reciprocal deviation; or undefined
  double eps = 1e-6;
  bool rms = false;  // RMSNorm instead of LayerNorm

  // Then one more LayerNorm; [C], both or none.
  TensorView then_weight, then_bias;
  double then_eps = 1e-5;

  // Then the feature map, which is also kept as `plain`, and the rotary turn of neighbouring
  // channels in heads of 2 * cos.shape[1] channels.
  FeatureMap map = FeatureMap::identity;
  TensorView plain;     // result: [B, N, C], or undefined
  TensorView cos, sin;  // f32 [N, D / 2], or undefined
};

// Gradients of a RowNorm without the later steps.
struct RowNormBackward {
  TensorView x;           // [B, N, C]: `sum` of the forward pass, or its x
  TensorView statistics;  // as the forward pass left them
  TensorView branch, gate, weight, scale;
  TensorView d_out;          // [B, N, C], of the type of `out`
  TensorView d_sum;          // [B, N, C], what `sum` got from elsewhere; or undefined
  TensorView d_x, d_branch;  // results, of the types of x and branch; d_branch may be undefined
  // Result: f32 [3, B, parts, C], sums over a part of a sample's tokens of d_out, of d_out times
  // the normalised x, and of d_x times branch. May be undefined.
  TensorView sums;
  bool rms = false;
};

// What focused linear attention makes of queries and keys, in f32:
// p = (relu(x) + eps) * factor
// out = |p| p^power / |p^power|, lengths over all channels
struct Focus {
  TensorView x, out;  // [B, N, C], of one type
  TensorView factor;  // f32 [C]
  double power = 3.0;
  double eps = 1e-6;
};

struct FocusBackward {
  TensorView x, d_out, d_x;  // [B, N, C], of one type; d_x is a result
  TensorView factor;         // f32 [C]
  TensorView sums;           // result: f32 [focus_parts(B * N), C], whose sum is the gradient of
                             // factor; may be undefined
  double power = 3.0;
  double eps = 1e-6;
};

// Why a call would be refused; empty if it is taken.
std::string refusal(const RowNorm& call);
std::string refusal(const RowNormBackward& call);
std::string refusal(const Focus& call);
std::string refusal(const FocusBackward& call);

// Throw where refusal() is not empty.
void row_norm(const RowNorm& call, Stream stream);
void row_norm_backward(const RowNormBackward& call, Stream stream);
void focus(const Focus& call, Stream stream);
void focus_backward(const FocusBackward& call, Stream stream);

// How many parts RowNormBackward::sums and FocusBackward::sums should have.
std::int64_t row_norm_parts(std::int64_t batch, std::int64_t tokens, std::int64_t channels);
std::int64_t focus_parts(std::int64_t rows);

}  // namespace mhla
