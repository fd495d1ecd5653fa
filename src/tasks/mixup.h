// Mixup and CutMix of a batch on its device, as timm's batch mode.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace mhla::tasks {

struct MixupOptions {
  double mixup = 0, cutmix = 0;  // alpha of the Beta distribution; 0: off
  double probability = 1.0, switch_to_cutmix = 0.5;
  double smoothing = 0.1;  // of the targets

  bool on() const { return mixup > 0 || cutmix > 0; }
};

// What is done to one part of a batch; it depends on the seed, the step and the part alone.
struct Mix {
  double lambda = 1;  // the share of the picture itself, corrected for the box
  bool box = false;
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;  // CutMix: rows and columns of the other
};

Mix draw_mix(const MixupOptions& options, std::int64_t height, std::int64_t width,
             std::uint64_t seed, std::uint64_t step, std::uint64_t part);

// Each picture with the one at the same place from the end. image [B, C, H, W], target [B] int64
// -> image, target [B, classes] f32 with smoothing / classes everywhere.
std::pair<at::Tensor, at::Tensor> mixed(const Mix& mix, const at::Tensor& image,
                                        const at::Tensor& target, std::int64_t classes,
                                        double smoothing);

}  // namespace mhla::tasks
