// From bytes to what a network reads: normalised planes, and random erasing in them.
#pragma once

#include <array>

#include "data/affine.h"
#include "data/random.h"

namespace mhla::data {

struct Normalisation {
  std::array<float, 3> mean{0.485F, 0.456F, 0.406F}, deviation{0.229F, 0.224F, 0.225F};  // ImageNet
  Colour mean_colour() const;  // round(255 mean)
  bool operator==(const Normalisation&) const = default;
};
// CIFAR-10's own, as is usual for pictures of 32 pixels.
inline constexpr Normalisation kCifarNormalisation{.mean = {0.4914F, 0.4822F, 0.4465F},
                                                   .deviation = {0.2470F, 0.2435F, 0.2616F}};

// (value / 255 - mean) / deviation, for each byte value and channel.
class Normaliser {
 public:
  explicit Normaliser(const Normalisation& normalisation);
  void operator()(const io::ImageView& image, float* to) const;  // to [3, height, width]
  // The way back, rounded and cut off to bytes.
  io::Image picture(const float* planes, int width, int height) const;

 private:
  Normalisation normalisation_;
  std::array<std::array<float, 256>, 3> table_;
};

struct Erasing {
  double probability = 0.25;
  double smallest = 0.02, largest = 1.0 / 3;  // of the area
  double flattest = 0.3;                      // height by width, up to its inverse
};

// Fills a random box with N(0, 1) per value, after normalising; up to ten tries to find one.
void erase(float* planes, int width, int height, const Erasing& erasing, Random& random);

}  // namespace mhla::data
