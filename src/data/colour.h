// Operations on the colours of a picture, with the results of Pillow's ImageOps and ImageEnhance.
#pragma once

#include "io/image.h"

namespace mhla::data {

void auto_contrast(io::Image& image);  // each channel is stretched to 0..255
void equalize(io::Image& image);       // each channel's histogram becomes flat
void invert(io::Image& image);
void posterize(io::Image& image, int bits);                         // keeps the upper bits
void solarize(io::Image& image, int threshold);                     // inverts from there upwards
void solarize_add(io::Image& image, int add, int threshold = 128);  // adds below it

// ImageEnhance: factor 0 is the grey, flat, black or blurred picture, 1 the original, above more.
void enhance_colour(io::Image& image, double factor);
void enhance_contrast(io::Image& image, double factor);
void enhance_brightness(io::Image& image, double factor);
void enhance_sharpness(io::Image& image, double factor);

void flip_horizontally(io::Image& image);

}  // namespace mhla::data
