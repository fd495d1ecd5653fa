// Which part of a picture a model sees: random crops for training, the centre for evaluation.
#pragma once

#include "data/affine.h"
#include "data/random.h"

namespace mhla::data {

struct Part {
  int x = 0, y = 0, width = 0, height = 0;
  bool operator==(const Part&) const = default;
};

struct CropRange {
  double smallest = 0.08, largest = 1;           // of the picture's area
  double narrowest = 3.0 / 4, widest = 4.0 / 3;  // width by height
};

// As torchvision's RandomResizedCrop: up to ten tries, then the centre.
Part random_part(int width, int height, const CropRange& range, Random& random);

// The part, scaled to size x size.
io::Image resized_part(const io::ImageView& image, const Part& part, int size, io::Filter filter);

// A border of `padding` pixels in the fill colour, then a random crop of the original size.
io::Image pad_and_crop(const io::ImageView& image, int padding, Colour fill, Random& random);

// Evaluation: the shorter side becomes floor(size / crop_part), then the middle size x size. A
// picture that has that size already stays as it is.
io::Image centre(const io::ImageView& image, int size, double crop_part, io::Filter filter);

}  // namespace mhla::data
