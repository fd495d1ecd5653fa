// RandAugment as timm's `rand-m9-mstd0.5-inc1` (spec.md 3.1).
#pragma once

#include <array>
#include <optional>
#include <string>

#include "data/affine.h"
#include "data/random.h"

namespace mhla::data {

enum class AugmentOp {
  auto_contrast,
  equalize,
  invert,
  rotate,
  posterize,
  solarize,
  solarize_add,
  colour,
  contrast,
  brightness,
  sharpness,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
};
inline constexpr int kAugmentOps = 15;
const char* name_of(AugmentOp op);  // "auto_contrast" ...

// One operation with its argument: degrees, bits, threshold, amount, factor, or part of the size.
void apply(io::Image& image, AugmentOp op, double argument, const Sampling& sampling);

struct RandAugment {
  double magnitude = 9;  // of 10
  double deviation = 0.5;
  int operations = 2;        // per picture, drawn with replacement
  double probability = 0.5;  // that a drawn one is applied
  bool increasing = true;    // a larger magnitude changes a picture more ("inc1")

  // The argument of an operation; `sign` says whether directions and enhancements go below.
  double argument(AugmentOp op, double level, bool negative) const;
  double level(Random& random) const;  // N(magnitude, deviation), within 0 and 10

  // Each operation between pixels uses `filter`, or one of bilinear and bicubic at random.
  void operator()(io::Image& image, std::optional<io::Filter> filter, Colour fill,
                  Random& random) const;
};

// "rand-m9-mstd0.5-inc1", the words in any order: m magnitude, mstd deviation, n operations,
// p probability, inc.
RandAugment parse_rand_augment(const std::string& text);

}  // namespace mhla::data
