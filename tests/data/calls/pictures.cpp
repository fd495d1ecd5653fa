// Functions that pytest calls by ctypes: pictures in and out as bytes, errors as text.
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>

#include "data/augment.h"
#include "data/colour.h"

namespace {

using mhla::io::Image;

thread_local Image result;
thread_local std::string message;

template <typename Make>
int keep(Make make) {
  try {
    result = make();
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}

Image picture(const std::uint8_t* pixels, int width, int height) {
  return Image({pixels, width, height, std::ptrdiff_t{3} * width});
}

}  // namespace

extern "C" {

const char* data_error() { return message.c_str(); }
int data_width() { return result.width(); }
int data_height() { return result.height(); }
const std::uint8_t* data_pixels() { return result.pixels().data(); }

int data_decode(const char* bytes, std::int64_t size) {
  return keep(
      [&] { return mhla::io::decode_image({bytes, static_cast<std::size_t>(size)}, "it"); });
}

// The encoded picture, decoded by Pillow, comes out of data_encoded().
thread_local std::string encoded;
std::int64_t data_encode(const std::uint8_t* pixels, int width, int height, int jpeg_quality) {
  const mhla::io::ImageView view{pixels, width, height, std::ptrdiff_t{3} * width};
  encoded = jpeg_quality ? mhla::io::encode_jpeg(view, jpeg_quality) : mhla::io::encode_png(view);
  return static_cast<std::int64_t>(encoded.size());
}
const char* data_encoded() { return encoded.data(); }

int data_resize(const std::uint8_t* pixels, int width, int height, int to_width, int to_height,
                const char* filter, const float* box) {
  return keep([&] {
    return mhla::io::resize({pixels, width, height, std::ptrdiff_t{3} * width}, to_width, to_height,
                            mhla::io::parse_filter(filter), {box[0], box[1], box[2], box[3]});
  });
}

// `op` counts AugmentOp.
int data_apply(const std::uint8_t* pixels, int width, int height, int op, double argument,
               const char* filter, const std::uint8_t* fill) {
  return keep([&] {
    Image image = picture(pixels, width, height);
    apply(image, static_cast<mhla::data::AugmentOp>(op), argument,
          {.filter = mhla::io::parse_filter(filter), .fill = {fill[0], fill[1], fill[2]}});
    return image;
  });
}
const char* data_op_name(int op) { return name_of(static_cast<mhla::data::AugmentOp>(op)); }

int data_flip(const std::uint8_t* pixels, int width, int height) {
  return keep([&] {
    Image image = picture(pixels, width, height);
    mhla::data::flip_horizontally(image);
    return image;
  });
}

int data_centre(const std::uint8_t* pixels, int width, int height, int size, double part,
                const char* filter) {
  return keep([&] {
    return mhla::data::centre({pixels, width, height, std::ptrdiff_t{3} * width}, size, part,
                              mhla::io::parse_filter(filter));
  });
}

void data_normalise(const std::uint8_t* pixels, int width, int height, float* to) {
  const mhla::data::Normaliser normalise{mhla::data::Normalisation{}};
  normalise({pixels, width, height, std::ptrdiff_t{3} * width}, to);
}

// `count` drawn arguments of operations, to compare with timm's: (op, argument, applied).
void data_draw_crops(int width, int height, std::int64_t count, int* parts) {
  mhla::data::Random random(7);
  for (std::int64_t i = 0; i < count; ++i, parts += 4) {
    const auto part = mhla::data::random_part(width, height, {}, random);
    const int values[4] = {part.x, part.y, part.width, part.height};
    std::memcpy(parts, values, sizeof values);
  }
}

void data_draw_arguments(int op, std::int64_t count, double* arguments) {
  mhla::data::Random random(8);
  const mhla::data::RandAugment augment;
  for (std::int64_t i = 0; i < count; ++i) {
    const double level = augment.level(random);
    arguments[i] = augment.argument(static_cast<mhla::data::AugmentOp>(op), level,
                                    random.chance(0.5));
  }
}

// Erases in planes of zeros, `count` times over: [count, 3, size, size].
void data_draw_erasing(int size, std::int64_t count, float* planes) {
  mhla::data::Random random(9);
  for (std::int64_t i = 0; i < count; ++i, planes += 3 * size * size) {
    mhla::data::erase(planes, size, size, {}, random);
  }
}

}  // extern "C"
