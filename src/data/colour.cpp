// Tables of 256 values per channel, and blends with a degenerate picture.
#include "data/colour.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace mhla::data {
namespace {

using io::Image;
using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::int64_t, 256>;

void map_values(Image& image, const Table& table) {
  for (std::uint8_t& value : image.pixels()) value = table[value];
}

template <typename Make>  // Table of a channel's Histogram
void map_channels(Image& image, Make make) {
  std::array<Histogram, 3> counts{};
  const std::vector<std::uint8_t>& pixels = image.pixels();
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) {
    ++counts[0][pixels[i]];
    ++counts[1][pixels[i + 1]];
    ++counts[2][pixels[i + 2]];
  }
  std::array<Table, 3> tables;
  for (std::size_t c = 0; c < 3; ++c) tables[c] = make(counts[c]);
  std::uint8_t* value = image.pixels().data();
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) {
    for (std::size_t c = 0; c < 3; ++c) value[i + c] = tables[c][value[i + c]];
  }
}

Table identity() {
  Table table;
  for (int i = 0; i < 256; ++i) table[i] = static_cast<std::uint8_t>(i);
  return table;
}

template <typename Value>
Table table_of(Value value) {
  Table table;
  for (int i = 0; i < 256; ++i) {
    table[i] = static_cast<std::uint8_t>(std::clamp<std::int64_t>(value(i), 0, 255));
  }
  return table;
}

// The luma of ITU-R 601 in 16 bits behind the point.
int grey(const std::uint8_t* pixel) {
  return (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16;
}

// degenerate + factor * (image - degenerate) in f32, cut off (not rounded) to a byte.
std::uint8_t blend(int degenerate, int value, float factor) {
  const float mixed = static_cast<float>(degenerate) +
                      factor * static_cast<float>(value - degenerate);
  return static_cast<std::uint8_t>(mixed <= 0 ? 0 : mixed >= 255 ? 255 : static_cast<int>(mixed));
}

void blend_with(Image& image, int degenerate, double factor) {
  map_values(image,
             table_of([&](int i) { return blend(degenerate, i, static_cast<float>(factor)); }));
}

// A 3x3 mean with five times the weight in the middle; the outermost pixels stay.
Image smoothed(const Image& image) {
  Image result = image;
  const int width = image.width(), height = image.height();
  for (int y = 1; y + 1 < height; ++y) {
    const std::uint8_t *above = image.row(y - 1), *here = image.row(y), *below = image.row(y + 1);
    std::uint8_t* to = result.row(y);
    for (int i = 3; i < 3 * (width - 1); ++i) {
      const int sum = above[i - 3] + above[i] + above[i + 3] + here[i - 3] + 5 * here[i] +
                      here[i + 3] + below[i - 3] + below[i] + below[i + 3];
      to[i] = static_cast<std::uint8_t>((2 * sum + 13) / 26);  // of 13, rounded
    }
  }
  return result;
}

}  // namespace

void auto_contrast(Image& image) {
  map_channels(image, [](const Histogram& counts) {
    int low = 0, high = 255;
    while (low < 255 && counts[low] == 0) ++low;
    while (high > 0 && counts[high] == 0) --high;
    if (high <= low) return identity();
    const double scale = 255.0 / (high - low), offset = -low * scale;
    return table_of([&](int i) { return static_cast<int>(i * scale + offset); });
  });
}

void equalize(Image& image) {
  map_channels(image, [](const Histogram& counts) {
    std::int64_t total = 0, last = 0;
    int kinds = 0;
    for (const std::int64_t count : counts) {
      total += count;
      if (count != 0) last = count, ++kinds;
    }
    const std::int64_t step = (total - last) / 255;
    if (kinds <= 1 || step == 0) return identity();
    std::int64_t sum = step / 2;
    return table_of([&](int i) {
      const std::int64_t value = sum / step;
      sum += counts[i];
      return value;
    });
  });
}

void invert(Image& image) {
  map_values(image, table_of([](int i) { return 255 - i; }));
}

void posterize(Image& image, int bits) {
  if (bits >= 8) return;
  const int mask = ~((1 << (8 - std::max(bits, 0))) - 1);
  map_values(image, table_of([&](int i) { return i & mask; }));
}

void solarize(Image& image, int threshold) {
  map_values(image, table_of([&](int i) { return i < threshold ? i : 255 - i; }));
}

void solarize_add(Image& image, int add, int threshold) {
  map_values(image, table_of([&](int i) { return i < threshold ? i + add : i; }));
}

void enhance_colour(Image& image, double factor) {
  if (factor == 1) return;
  const auto alpha = static_cast<float>(factor);
  std::vector<std::uint8_t>& pixels = image.pixels();
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) {
    const int flat = grey(&pixels[i]);
    for (std::size_t c = 0; c < 3; ++c) pixels[i + c] = blend(flat, pixels[i + c], alpha);
  }
}

void enhance_contrast(Image& image, double factor) {
  if (factor == 1) return;
  const std::vector<std::uint8_t>& pixels = image.pixels();
  std::int64_t sum = 0;
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) sum += grey(&pixels[i]);
  const double count = static_cast<double>(pixels.size()) / 3;
  blend_with(image, static_cast<int>(std::floor(static_cast<double>(sum) / count + 0.5)), factor);
}

void enhance_brightness(Image& image, double factor) {
  if (factor != 1) blend_with(image, 0, factor);
}

void enhance_sharpness(Image& image, double factor) {
  if (factor == 1) return;
  const Image soft = smoothed(image);
  const auto alpha = static_cast<float>(factor);
  std::vector<std::uint8_t>& pixels = image.pixels();
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = blend(soft.pixels()[i], pixels[i], alpha);
  }
}

void flip_horizontally(Image& image) {
  for (int y = 0; y < image.height(); ++y) {
    std::uint8_t* row = image.row(y);
    for (int left = 0, right = image.width() - 1; left < right; ++left, --right) {
      std::swap_ranges(row + 3 * left, row + 3 * left + 3, row + 3 * right);
    }
  }
}

}  // namespace mhla::data
