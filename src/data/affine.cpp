// Inverse mapping: each output pixel looks up where it comes from.
#include "data/affine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>

#include "mhla/error.h"

namespace mhla::data {
namespace {

using io::Image;

// Where the neighbourhood of a position starts, and how far into its pixel the position lies.
struct Place {
  int cell;
  double within;
};

Place place_of(double position) {
  const double from_centre = position - 0.5;
  const double cell = std::floor(from_centre);
  return {static_cast<int>(cell), from_centre - cell};
}

// In both filters the columns are clamped to the picture, and a row outside repeats the one before.
void bilinear(const Image& image, double x, double y, std::uint8_t* to) {
  const auto [column, right] = place_of(x);
  const auto [line, down] = place_of(y);
  const int last = image.width() - 1;
  const int x0 = 3 * std::clamp(column, 0, last), x1 = 3 * std::clamp(column + 1, 0, last);
  const std::uint8_t* upper = image.row(std::clamp(line, 0, image.height() - 1));
  const bool has_lower = line + 1 >= 0 && line + 1 < image.height();
  const std::uint8_t* lower = has_lower ? image.row(line + 1) : upper;
  for (int c = 0; c < 3; ++c) {
    const double above = upper[x0 + c] + (upper[x1 + c] - upper[x0 + c]) * right;
    const double below = lower[x0 + c] + (lower[x1 + c] - lower[x0 + c]) * right;
    to[c] = static_cast<std::uint8_t>(above + (below - above) * down);
  }
}

// The cubic through v[1] and v[2] with the slopes v[2] - v[0] and v[3] - v[1] (a = -1).
double cubic(const double* v, double d) {
  const double p1 = v[1], p2 = -v[0] + v[2];
  const double p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = -v[0] + v[1] - v[2] + v[3];
  return p1 + d * (p2 + d * (p3 + d * p4));
}

void bicubic(const Image& image, double x, double y, std::uint8_t* to) {
  const auto [column, right] = place_of(x);
  const auto [line, down] = place_of(y);
  const int last = image.width() - 1;
  int columns[4];
  for (int i = 0; i < 4; ++i) columns[i] = 3 * std::clamp(column - 1 + i, 0, last);
  const std::uint8_t* rows[4];
  rows[0] = image.row(std::clamp(line - 1, 0, image.height() - 1));
  for (int i = 1; i < 4; ++i) {
    const int at = line - 1 + i;
    rows[i] = at >= 0 && at < image.height() ? image.row(at) : rows[i - 1];
  }
  for (int c = 0; c < 3; ++c) {
    double values[4];
    for (int i = 0; i < 4; ++i) {
      double v[4];
      for (int j = 0; j < 4; ++j) v[j] = rows[i][columns[j] + c];
      values[i] = cubic(v, right);
    }
    const double value = cubic(values, down);
    to[c] = static_cast<std::uint8_t>(value <= 0 ? 0 : value >= 255 ? 255 : value);
  }
}

template <typename Read>
Image mapped(const Image& image, const std::array<double, 6>& m, Colour fill, Read read) {
  Image result(image.width(), image.height(), fill[0], fill[1], fill[2]);
  for (int j = 0; j < image.height(); ++j) {
    std::uint8_t* to = result.row(j);
    for (int i = 0; i < image.width(); ++i, to += 3) {
      const double x = m[0] * (i + 0.5) + m[1] * (j + 0.5) + m[2];
      const double y = m[3] * (i + 0.5) + m[4] * (j + 0.5) + m[5];
      if (x >= 0 && x < image.width() && y >= 0 && y < image.height()) read(image, x, y, to);
    }
  }
  return result;
}

// As decimal text, which is how Python rounds.
double rounded_to_15_places(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15f", x);
  return std::strtod(text, nullptr);
}

}  // namespace

Image affine(const Image& image, const std::array<double, 6>& m, const Sampling& sampling) {
  switch (sampling.filter) {
    case io::Filter::bilinear: return mapped(image, m, sampling.fill, bilinear);
    case io::Filter::bicubic: return mapped(image, m, sampling.fill, bicubic);
    default:
      fail("data", "affine: ", io::name_of(sampling.filter), " has no meaning between pixels; ",
           "known: bilinear, bicubic");
  }
}

Image shear_x(const Image& image, double factor, const Sampling& sampling) {
  return affine(image, {1, factor, 0, 0, 1, 0}, sampling);
}

Image shear_y(const Image& image, double factor, const Sampling& sampling) {
  return affine(image, {1, 0, 0, factor, 1, 0}, sampling);
}

Image translate_x(const Image& image, double part, const Sampling& sampling) {
  return affine(image, {1, 0, part * image.width(), 0, 1, 0}, sampling);
}

Image translate_y(const Image& image, double part, const Sampling& sampling) {
  return affine(image, {1, 0, 0, 0, 1, part * image.height()}, sampling);
}

Image rotate(const Image& image, double degrees, const Sampling& sampling) {
  degrees = std::fmod(degrees, 360);
  if (degrees < 0) degrees += 360;
  if (degrees == 0) return image;
  const double angle = -degrees * std::numbers::pi / 180;
  // Pillow rounds these, so that quarter turns hit the pixels exactly.
  const double cosine = rounded_to_15_places(std::cos(angle));
  const double sine = rounded_to_15_places(std::sin(angle));
  const double cx = image.width() / 2.0, cy = image.height() / 2.0;
  const double dx = cosine * -cx + sine * -cy, dy = -sine * -cx + cosine * -cy;
  return affine(image, {cosine, sine, dx + cx, -sine, cosine, dy + cy}, sampling);
}

}  // namespace mhla::data
