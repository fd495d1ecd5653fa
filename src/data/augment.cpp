// Crop, flip, RandAugment or colour jitter, normalise, erase: in this order.
#include "data/augment.h"

#include <algorithm>

#include "data/colour.h"
#include "mhla/error.h"

namespace mhla::data {

void ColourJitter::operator()(io::Image& image, Random& random) const {
  std::array<int, 3> order{0, 1, 2};
  for (int i = 2; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  std::array<double, 3> factor{brightness, contrast, saturation};
  for (double& x : factor) x = random.uniform(std::max(0.0, 1 - x), 1 + x);
  for (const int which : order) {
    if (which == 0) enhance_brightness(image, factor[0]);
    if (which == 1) enhance_contrast(image, factor[1]);
    if (which == 2) enhance_colour(image, factor[2]);
  }
}

Augmentation Augmentation::recipe() {
  return {.random_crop = CropRange{},
          .pad_crop = 0,
          .flip = 0.5,
          .rand_augment = RandAugment{},
          .colour_jitter = {},
          .erasing = Erasing{},
          .filter = {}};
}

Augmentation Augmentation::light(int image_size) {
  Augmentation result = none();
  result.pad_crop = std::max(image_size / 8, 1);
  result.flip = 0.5;
  return result;
}

Augmentation Augmentation::none() {
  return {.random_crop = {},
          .pad_crop = 0,
          .flip = 0,
          .rand_augment = {},
          .colour_jitter = {},
          .erasing = {},
          .filter = {}};
}

void check(const Augmentation& a, int image_size) {
  const auto probability = [](const char* name, double p) {
    if (!(p >= 0 && p <= 1)) fail("data", name, ": expected a probability, got ", p);
  };
  if (image_size < 1 || image_size > 1 << 14) {
    fail("data", "image_size: expected 1 to ", 1 << 14, ", got ", image_size);
  }
  if (a.pad_crop < 0) fail("data", "pad_crop: expected 0 or more, got ", a.pad_crop);
  if (a.pad_crop > 0 && a.random_crop) {
    fail("data", "pad_crop and random_crop: only one of them can choose the part");
  }
  if (a.rand_augment && a.colour_jitter) {
    fail("data", "rand_augment and colour_jitter: only one of them can change colours");
  }
  probability("flip", a.flip);
  if (a.rand_augment) probability("rand_augment.p", a.rand_augment->probability);
  if (a.random_crop) {
    const CropRange& range = *a.random_crop;
    if (!(range.smallest > 0 && range.smallest <= range.largest && range.largest <= 1)) {
      fail("data", "random_crop: expected 0 < scale <= 1, got ", range.smallest, " to ",
           range.largest);
    }
    if (!(range.narrowest > 0 && range.narrowest <= range.widest && range.widest < 1000)) {
      fail("data", "random_crop: expected a positive ratio, got ", range.narrowest, " to ",
           range.widest);
    }
  }
  if (a.erasing) {
    const Erasing& e = *a.erasing;
    probability("erasing", e.probability);
    if (!(e.smallest >= 0 && e.smallest <= e.largest && e.largest <= 1 && e.flattest > 0 &&
          e.flattest <= 1)) {
      fail("data", "erasing: expected areas in 0..1 and a ratio in 0..1, got ", e.smallest, " to ",
           e.largest, ", ", e.flattest);
    }
  }
  if (a.filter && *a.filter != io::Filter::bilinear && *a.filter != io::Filter::bicubic) {
    fail("data", "interpolation: expected bilinear, bicubic or random, got ",
         io::name_of(*a.filter));
  }
}

TrainTransform::TrainTransform(const Augmentation& augmentation, int image_size,
                               const Normalisation& n)
    : augmentation_(augmentation), size_(image_size), fill_(n.mean_colour()), normalise_(n) {
  check(augmentation, image_size);
}

io::Image TrainTransform::picture(const io::ImageView& image, Random& random) const {
  const Augmentation& a = augmentation_;
  const io::Filter either = random.chance(0.5) ? io::Filter::bicubic : io::Filter::bilinear;
  const io::Filter filter = a.filter.value_or(either);
  io::Image result;
  if (a.random_crop) {
    const Part part = random_part(image.width, image.height, *a.random_crop, random);
    result = resized_part(image, part, size_, filter);
  } else if (image.width == size_ && image.height == size_) {
    result = io::Image(image);
  } else {
    result = centre(image, size_, 1, filter);
  }
  if (a.pad_crop > 0) result = pad_and_crop(result.view(), a.pad_crop, fill_, random);
  if (random.chance(a.flip)) flip_horizontally(result);
  if (a.rand_augment) (*a.rand_augment)(result, a.filter, fill_, random);
  if (a.colour_jitter) (*a.colour_jitter)(result, random);
  return result;
}

void TrainTransform::operator()(const io::ImageView& image, Random& random, float* to) const {
  normalise_(picture(image, random).view(), to);
  if (augmentation_.erasing) erase(to, size_, size_, *augmentation_.erasing, random);
}

EvalTransform::EvalTransform(int image_size, double crop_part, io::Filter filter,
                             const Normalisation& n)
    : size_(image_size), crop_part_(crop_part), filter_(filter), normalise_(n) {}

void EvalTransform::operator()(const io::ImageView& image, float* to) const {
  normalise_(centre(image, size_, crop_part_, filter_).view(), to);
}

}  // namespace mhla::data
