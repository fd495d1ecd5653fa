// Turning, shearing and shifting a picture, with the results of Pillow's Image.transform(AFFINE).
#pragma once

#include <array>
#include <cstdint>

#include "io/image.h"
#include "io/image_resize.h"

namespace mhla::data {

using Colour = std::array<std::uint8_t, 3>;

// How pixels are read between their centres, and the colour of what lies outside.
struct Sampling {
  io::Filter filter = io::Filter::bilinear;  // or bicubic
  Colour fill{};
};

// The output at (x, y) is the input at (m0 x + m1 y + m2, m3 x + m4 y + m5), pixel centres at .5.
io::Image affine(const io::Image& image, const std::array<double, 6>& m, const Sampling& sampling);

io::Image shear_x(const io::Image& image, double factor, const Sampling& sampling);
io::Image shear_y(const io::Image& image, double factor, const Sampling& sampling);
io::Image translate_x(const io::Image& image, double part,
                      const Sampling& sampling);  // of the width
io::Image translate_y(const io::Image& image, double part, const Sampling& sampling);
// Counter-clockwise around the centre.
io::Image rotate(const io::Image& image, double degrees, const Sampling& sampling);

}  // namespace mhla::data
