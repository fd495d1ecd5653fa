// A small picture: rectangles, a colour scale, short labels.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "io/image.h"

namespace mhla::cli {

using Colour = std::array<std::uint8_t, 3>;

inline constexpr Colour kWhite{255, 255, 255}, kBlack{0, 0, 0};

// Dark blue to yellow, even in brightness and readable without colour vision; 0 <= x <= 1.
Colour scale_colour(double x);

class Canvas {
 public:
  Canvas(int width, int height) : image_(width, height, 255, 255, 255) {}

  void fill(int x, int y, int width, int height, Colour colour);  // clipped
  void frame(int x, int y, int width, int height, Colour colour, int thickness = 2);
  // Letters of kTextHeight; returns the width in pixels. Lower case is drawn as capitals.
  int text(int x, int y, const std::string& text, Colour colour = kBlack);
  io::ImageView view() const { return image_.view(); }

  static constexpr int kTextScale = 3;
  static constexpr int kTextHeight = 5 * kTextScale;

 private:
  io::Image image_;
};

}  // namespace mhla::cli
