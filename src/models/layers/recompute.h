// Memory for time: a block keeps only its input, and runs again when its gradients are asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "models/layers/residual.h"

namespace mhla::models {

// While it lives, blocks of networks in this thread do so.
class RecomputeBlocks {
 public:
  explicit RecomputeBlocks(bool on);
  RecomputeBlocks(const RecomputeBlocks&) = delete;
  RecomputeBlocks& operator=(const RecomputeBlocks&) = delete;
  ~RecomputeBlocks();

  static bool on();
  // Blocks that did, since this began: 0 where a network has no blocks of this kind.
  std::int64_t count() const;

 private:
  bool before_;
  std::int64_t count_before_;
};

// block(inputs); recomputed with the same random numbers and autocast where a RecomputeBlocks lives
// and a gradient is asked for. Gradients reach the inputs and the parameters of the block alone, so
// whatever else the block takes by its closure must need none.
using Block = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
at::Tensor recomputed(const std::vector<at::Tensor>& inputs, const Block& block);

// The same for a block that adds to the tokens; `others` are what else has gradients.
using ResidualBlock = std::function<void(Residual&, const std::vector<at::Tensor>& others)>;
void recompute_block(Residual& x, const std::vector<at::Tensor>& others,
                     const ResidualBlock& block);

}  // namespace mhla::models
