// The stream of tokens that the blocks of a network add to.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "nn/modules/attention.h"

namespace mhla::models {

// What was added last is summed by the norm that comes next, in the same pass over the tokens.
class Residual {
 public:
  explicit Residual(at::Tensor x) : x_(std::move(x)) {}  // [B, N, C]

  // gate [B, C]; undefined: 1
  void add(const at::Tensor& branch, const at::Tensor& gate = {});
  // While training, the branch of a sample is left out with probability `rate` (drop path).
  void add_or_drop(const at::Tensor& branch, double rate, bool training);
  // norm(x) * (1 + scale) + shift; [B, C], undefined: without. Then `then`, where it is given.
  at::Tensor normed(const nn::functional::Norm& norm, const at::Tensor& shift = {},
                    const at::Tensor& scale = {},
                    const std::optional<nn::functional::Norm>& then = std::nullopt);
  // What a layer makes of the tokens normed so.
  at::Tensor attended(nn::Attention& layer, const nn::functional::Norm& norm,
                      const at::Tensor& shift = {}, const at::Tensor& scale = {});
  // With everything added.
  const at::Tensor& value();

 private:
  at::Tensor x_, branch_, gate_;
};

}  // namespace mhla::models
