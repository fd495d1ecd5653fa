// Memory for time: a block keeps only its input, and runs again when its gradients are asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

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

// block(x); recomputed with the same random numbers and autocast where a RecomputeBlocks lives and
// a gradient is asked for.
at::Tensor recomputed(const at::Tensor& x,
                      const std::function<at::Tensor(const at::Tensor&)>& block);

}  // namespace mhla::models
