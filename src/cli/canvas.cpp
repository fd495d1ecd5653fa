// Drawing into an RGB buffer and writing it with libpng.
#include "cli/canvas.h"

#include <png.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "mhla/error.h"

namespace mhla::cli {
namespace {

// Three columns by five rows, one octal digit per row, top first.
int glyph(char c) {
  static const std::map<char, int> kGlyphs = {
      {'0', 075557}, {'1', 026227}, {'2', 071747}, {'3', 071717}, {'4', 055711}, {'5', 074717},
      {'6', 074757}, {'7', 071122}, {'8', 075757}, {'9', 075717}, {'A', 025755}, {'B', 065656},
      {'C', 034443}, {'D', 065556}, {'E', 074647}, {'F', 074644}, {'G', 034553}, {'H', 055755},
      {'I', 072227}, {'J', 011152}, {'K', 055655}, {'L', 044447}, {'M', 057755}, {'N', 065555},
      {'O', 025552}, {'P', 065644}, {'Q', 025563}, {'R', 065655}, {'S', 034216}, {'T', 072222},
      {'U', 055557}, {'V', 055552}, {'W', 055775}, {'X', 055255}, {'Y', 055222}, {'Z', 071247},
      {'.', 000002}, {'-', 000700}, {'_', 000007}, {':', 002020}, {',', 000024}, {'/', 011244},
      {'(', 024442}, {')', 021112}, {'+', 002720}, {'=', 007070},
  };
  const auto found = kGlyphs.find(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  return found == kGlyphs.end() ? 0 : found->second;
}

}  // namespace

Colour scale_colour(double x) {
  static constexpr Colour kStops[] = {
      {68, 1, 84},    {72, 40, 120},  {62, 74, 137},  {49, 104, 142}, {38, 130, 142},
      {31, 158, 137}, {53, 183, 121}, {109, 205, 89}, {180, 222, 44}, {253, 231, 37}};
  constexpr int kLast = static_cast<int>(std::size(kStops)) - 1;
  const double place = std::clamp(std::isnan(x) ? 0.0 : x, 0.0, 1.0) * kLast;
  const int low = std::min(static_cast<int>(place), kLast - 1);
  Colour colour;
  for (std::size_t i = 0; i < 3; ++i) {
    const double value = kStops[low][i] + (place - low) * (kStops[low + 1][i] - kStops[low][i]);
    colour[i] = static_cast<std::uint8_t>(std::lround(value));
  }
  return colour;
}

Canvas::Canvas(int width, int height, Colour background) : width_(width), height_(height) {
  pixels_.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  fill(0, 0, width, height, background);
}

void Canvas::fill(int x, int y, int width, int height, Colour colour) {
  for (int row = std::max(y, 0); row < std::min(y + height, height_); ++row) {
    for (int column = std::max(x, 0); column < std::min(x + width, width_); ++column) {
      const std::size_t at = (static_cast<std::size_t>(row) * width_ + column) * 3;
      std::copy(colour.begin(), colour.end(), pixels_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

void Canvas::frame(int x, int y, int width, int height, Colour colour, int thickness) {
  fill(x, y, width, thickness, colour);
  fill(x, y + height - thickness, width, thickness, colour);
  fill(x, y, thickness, height, colour);
  fill(x + width - thickness, y, thickness, height, colour);
}

int Canvas::text(int x, int y, const std::string& text, Colour colour) {
  const int start = x;
  for (const char c : text) {
    const int bits = glyph(c);
    for (int i = 0; i < 15; ++i) {
      if ((bits >> (14 - i) & 1) == 0) continue;
      fill(x + i % 3 * kTextScale, y + i / 3 * kTextScale, kTextScale, kTextScale, colour);
    }
    x += 4 * kTextScale;
  }
  return x - start;
}

void Canvas::write_png(const std::string& path) const {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width_);
  image.height = static_cast<png_uint_32>(height_);
  image.format = PNG_FORMAT_RGB;
  // Not png_image_write_to_file: when that fails it deletes what was there, a device for example.
  const auto refuse = [&](const char* why) {
    fail(ErrorCode::io, "mixing", "cannot write ", path, ": ", why);
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                             &std::fclose);
  if (!file) refuse(std::strerror(errno));
  if (!png_image_write_to_stdio(&image, file.get(), 0, pixels_.data(), 0, nullptr)) {
    refuse(image.message);
  }
  if (std::fflush(file.get()) != 0) refuse(std::strerror(errno));
}

}  // namespace mhla::cli
