// Resizing with an antialiasing filter, equal to Pillow's to the last bit.
#pragma once

#include <array>
#include <string>

#include "io/image.h"

namespace mhla::io {

enum class Filter { box, bilinear, bicubic, lanczos };
Filter parse_filter(const std::string& name);  // "box", "bilinear", "bicubic", "lanczos"
const char* name_of(Filter filter);

// The part of a picture to resize, in pixels and fractions of them: left, top, right, bottom.
// NOTE: near its edges the filter reads pixels outside of the box, as in Pillow; a crop does not.
using Box = std::array<float, 4>;

Image resize(const ImageView& image, int width, int height, Filter filter);
Image resize(const ImageView& image, int width, int height, Filter filter, const Box& box);

}  // namespace mhla::io
