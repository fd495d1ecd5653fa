// Normalising by table, and erasing.
#include "data/pixels.h"

#include <algorithm>
#include <cmath>

#include "mhla/error.h"

namespace mhla::data {

Colour Normalisation::mean_colour() const {
  Colour colour;
  for (std::size_t c = 0; c < 3; ++c) {
    const double value = std::nearbyint(255 * static_cast<double>(mean[c]));
    colour[c] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
  }
  return colour;
}

Normaliser::Normaliser(const Normalisation& normalisation) : normalisation_(normalisation) {
  for (std::size_t c = 0; c < 3; ++c) {
    if (!(normalisation.deviation[c] > 0)) {
      fail("data", "deviation: expected a positive number, got ", normalisation.deviation[c]);
    }
    for (int i = 0; i < 256; ++i) {
      table_[c][i] = (static_cast<float>(i) / 255.0F - normalisation.mean[c]) /
                     normalisation.deviation[c];
    }
  }
}

void Normaliser::operator()(const io::ImageView& image, float* to) const {
  const std::size_t plane = static_cast<std::size_t>(image.width) * image.height;
  float *red = to, *green = to + plane, *blue = to + 2 * plane;
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* from = image.row(y);
    for (int x = 0; x < image.width; ++x, from += 3) {
      *red++ = table_[0][from[0]];
      *green++ = table_[1][from[1]];
      *blue++ = table_[2][from[2]];
    }
  }
}

io::Image Normaliser::picture(const float* planes, int width, int height) const {
  io::Image image(width, height);
  const std::size_t plane = static_cast<std::size_t>(width) * height;
  for (std::size_t i = 0; i < plane; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      const float value = 255 * (planes[c * plane + i] * normalisation_.deviation[c] +
                                 normalisation_.mean[c]);
      image.pixels()[3 * i + c] = static_cast<std::uint8_t>(std::clamp(value + 0.5F, 0.0F, 255.0F));
    }
  }
  return image;
}

void erase(float* planes, int width, int height, const Erasing& erasing, Random& random) {
  if (!random.chance(erasing.probability)) return;
  const double area = static_cast<double>(width) * height, bound = std::log(erasing.flattest);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(erasing.smallest, erasing.largest);
    const double aspect = std::exp(random.uniform(bound, -bound));
    const int h = static_cast<int>(std::nearbyint(std::sqrt(target * aspect)));
    const int w = static_cast<int>(std::nearbyint(std::sqrt(target / aspect)));
    if (w >= width || h >= height) continue;
    const int top = static_cast<int>(random.below(height - h + 1));
    const int left = static_cast<int>(random.below(width - w + 1));
    for (int c = 0; c < 3; ++c) {
      for (int y = top; y < top + h; ++y) {
        float* row = planes + (static_cast<std::size_t>(c) * height + y) * width;
        for (int x = left; x < left + w; ++x) row[x] = static_cast<float>(random.normal());
      }
    }
    return;
  }
}

}  // namespace mhla::data
