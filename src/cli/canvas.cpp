// Drawing rectangles and letters into a picture.
#include "cli/canvas.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

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

void Canvas::fill(int x, int y, int width, int height, Colour colour) {
  const int left = std::max(x, 0), right = std::min(x + width, image_.width());
  for (int row = std::max(y, 0); row < std::min(y + height, image_.height()); ++row) {
    for (int column = left; column < right; ++column) {
      std::copy(colour.begin(), colour.end(), image_.row(row) + std::ptrdiff_t{3} * column);
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

}  // namespace mhla::cli
