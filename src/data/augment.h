// The whole chain from a picture of a data set to what a network reads, for training and for
// evaluation (spec.md 3.1).
#pragma once

#include <optional>

#include "data/crops.h"
#include "data/pixels.h"
#include "data/rand_augment.h"

namespace mhla::data {

struct ColourJitter {  // each factor uniform in 1 - x to 1 + x, in a random order
  double brightness = 0.4, contrast = 0.4, saturation = 0.4;
  void operator()(io::Image& image, Random& random) const;
};

struct Augmentation {
  std::optional<CropRange> random_crop = CropRange{};
  int pad_crop = 0;  // border of small pictures that are cropped without scaling; 0: none
  double flip = 0.5;
  std::optional<RandAugment> rand_augment;
  std::optional<ColourJitter> colour_jitter;  // not beside rand_augment
  std::optional<Erasing> erasing;
  std::optional<io::Filter> filter;  // empty: bilinear or bicubic at random

  // The recipe of the paper's classification runs.
  static Augmentation recipe();
  // Of small pictures: a border of an eighth and flips; nothing of the recipe otherwise.
  static Augmentation light(int image_size);
  static Augmentation none();
};

// Throws for what contradicts itself.
void check(const Augmentation& augmentation, int image_size);

class TrainTransform {
 public:
  TrainTransform(const Augmentation& augmentation, int image_size, const Normalisation& n);
  // All but the normalising and erasing.
  io::Image picture(const io::ImageView& image, Random& random) const;
  void operator()(const io::ImageView& image, Random& random, float* to) const;  // [3, size, size]

 private:
  Augmentation augmentation_;
  int size_;
  Colour fill_;
  Normaliser normalise_;
};

class EvalTransform {
 public:
  EvalTransform(int image_size, double crop_part, io::Filter filter, const Normalisation& n);
  void operator()(const io::ImageView& image, float* to) const;  // [3, size, size]

 private:
  int size_;
  double crop_part_;
  io::Filter filter_;
  Normaliser normalise_;
};

}  // namespace mhla::data
