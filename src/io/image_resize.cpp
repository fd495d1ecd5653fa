// Two passes, along rows and along columns, each a weighted sum of input pixels in fixed point,
// rounded to eight bits. Weights: the filter's value at the distance between input and output pixel
// centres, stretched by the reduction (so every input pixel counts), normalised to sum one.
#include "io/image_resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "mhla/error.h"

namespace mhla::io {
namespace {

// Bits behind the point of a weight: 8 bits of pixel, one of sign and one for the overshoot of
// negative lobes leave 22 of an int.
constexpr int kBits = 32 - 8 - 2;

double reach(Filter filter) {
  switch (filter) {
    case Filter::box: return 0.5;
    case Filter::bilinear: return 1;
    case Filter::bicubic: return 2;
    case Filter::lanczos: return 3;
  }
  fail(ErrorCode::internal, "image", "unknown filter");
}

double sinc(double x) {
  const double angle = x * std::numbers::pi;
  return x == 0 ? 1 : std::sin(angle) / angle;
}

double value(Filter filter, double x) {
  if (filter == Filter::box) return x > -0.5 && x <= 0.5 ? 1 : 0;
  if (filter == Filter::lanczos) return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
  x = std::abs(x);
  if (filter == Filter::bilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;  // Catmull-Rom
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// For each output pixel: which inputs, and their weights.
struct Weights {
  int taps = 0;  // room for each output pixel
  std::vector<int> first, count, weight;
};

// NOTE: the ends are f32 and so is their difference, as in Pillow.
Weights weights_of(int inputs, float start, float end, int outputs, Filter filter) {
  const double scale = static_cast<double>(end - start) / outputs;
  const double stretch = std::max(scale, 1.0);
  const double support = reach(filter) * stretch;
  Weights result;
  result.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  result.first.resize(static_cast<std::size_t>(outputs));
  result.count.resize(static_cast<std::size_t>(outputs));
  result.weight.resize(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(result.taps));
  std::vector<double> exact(static_cast<std::size_t>(result.taps));
  for (int i = 0; i < outputs; ++i) {
    const double centre = start + (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(std::floor(centre - support + 0.5)), 0);
    const int last = std::min(static_cast<int>(std::floor(centre + support + 0.5)), inputs);
    double sum = 0;
    for (int j = first; j < last; ++j) {
      exact[j - first] = value(filter, (j - centre + 0.5) * (1 / stretch));
      sum += exact[j - first];
    }
    int* weight = result.weight.data() + std::size_t(i) * std::size_t(result.taps);
    for (int j = 0; j < last - first; ++j) {
      const double w = (sum != 0 ? exact[j] / sum : exact[j]) * (1 << kBits);
      weight[j] = static_cast<int>(w < 0 ? w - 0.5 : w + 0.5);
    }
    result.first[i] = first;
    result.count[i] = last - first;
  }
  return result;
}

// The inputs that are read at all: the first pass need not make others. Their numbers then count
// from the first one.
struct Needed {
  int first, count;
};
Needed needed(Weights& w) {
  const int first = w.first.front(), last = w.first.back() + w.count.back();
  for (int& each : w.first) each -= first;
  return {first, last - first};
}

std::uint8_t rounded(int sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255));
}

constexpr int kHalf = 1 << (kBits - 1);

Image resize_rows(const ImageView& image, int width, const Weights& w) {
  Image result(width, image.height);
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* from = image.row(y);
    std::uint8_t* to = result.row(y);
    for (int x = 0; x < width; ++x, to += 3) {
      const std::uint8_t* pixel = from + std::ptrdiff_t{3} * w.first[x];
      const int* weight = w.weight.data() + std::size_t(x) * std::size_t(w.taps);
      int r = kHalf, g = kHalf, b = kHalf;
      for (int j = 0; j < w.count[x]; ++j, pixel += 3) {
        r += pixel[0] * weight[j];
        g += pixel[1] * weight[j];
        b += pixel[2] * weight[j];
      }
      to[0] = rounded(r);
      to[1] = rounded(g);
      to[2] = rounded(b);
    }
  }
  return result;
}

// A whole row of sums at a time, so that the compiler uses vectors.
Image resize_columns(const ImageView& image, int height, const Weights& w) {
  Image result(image.width, height);
  const std::size_t length = 3 * static_cast<std::size_t>(image.width);
  std::vector<int> sums(length);
  for (int y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int j = 0; j < w.count[y]; ++j) {
      const std::uint8_t* from = image.row(w.first[y] + j);
      const int weight = w.weight[std::size_t(y) * std::size_t(w.taps) + std::size_t(j)];
      int* sum = sums.data();
      for (std::size_t i = 0; i < length; ++i) sum[i] += from[i] * weight;
    }
    std::uint8_t* to = result.row(y);
    for (std::size_t i = 0; i < length; ++i) to[i] = rounded(sums[i]);
  }
  return result;
}

}  // namespace

Filter parse_filter(const std::string& name) {
  for (const Filter filter : {Filter::box, Filter::bilinear, Filter::bicubic, Filter::lanczos}) {
    if (name == name_of(filter)) return filter;
  }
  fail("image", "interpolation: unknown '", name, "'; known: box, bilinear, bicubic, lanczos");
}

const char* name_of(Filter filter) {
  switch (filter) {
    case Filter::box: return "box";
    case Filter::bilinear: return "bilinear";
    case Filter::bicubic: return "bicubic";
    case Filter::lanczos: return "lanczos";
  }
  return "?";
}

Image resize(const ImageView& image, int width, int height, Filter filter) {
  return resize(image, width, height, filter,
                {0, 0, static_cast<float>(image.width), static_cast<float>(image.height)});
}

Image resize(const ImageView& image, int width, int height, Filter filter, const Box& box) {
  const auto [left, top, right, bottom] = box;
  if (width <= 0 || height <= 0 || std::int64_t{width} * height > kMostPixels) {
    fail("image", "resize: cannot make a picture of ", width, "x", height);
  }
  if (!(left >= 0 && top >= 0 && left < right && top < bottom && right <= image.width &&
        bottom <= image.height)) {
    fail("image", "resize: the box (", left, ", ", top, ", ", right, ", ", bottom,
         ") is empty or not inside ", image.width, "x", image.height);
  }
  const bool rows = width != image.width || left != 0 || right != width;
  const bool columns = height != image.height || top != 0 || bottom != height;
  if (!rows && !columns) return Image(image);
  Weights across, down;
  if (rows) across = weights_of(image.width, left, right, width, filter);
  if (columns) down = weights_of(image.height, top, bottom, height, filter);
  if (!columns) return resize_rows(image, width, across);
  if (!rows) return resize_columns(image, height, down);
  // Pillow's order since version 13, which changes last bits; before it rows always came first.
  // NOTE: found by trying sizes, not documented there.
  const bool columns_first = height < image.height &&
                             image.height - height > 2 * (image.width - width);
  if (columns_first) {
    const auto [first, count] = needed(across);
    const ImageView source = image.crop(first, 0, count, image.height);
    return resize_rows(resize_columns(source, height, down).view(), width, across);
  }
  const auto [first, count] = needed(down);
  const ImageView source = image.crop(0, first, image.width, count);
  return resize_columns(resize_rows(source, width, across).view(), height, down);
}

}  // namespace mhla::io
