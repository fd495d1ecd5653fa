// PNG by libpng.
#include <png.h>

#include <cstring>
#include <memory>

#include "io/image.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

struct Source {
  std::string_view bytes;
  const std::string& name;
  std::size_t place = 0;
};

// NOTE: libpng is C code compiled with unwind tables, as Debian's and conda's are; an exception may
// pass through it, and unlike longjmp it runs the destructors of our own frames.
[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  const auto* name = static_cast<const std::string*>(png_get_error_ptr(png));
  fail(ErrorCode::corrupt_data, "image", *name, ": not a readable PNG: ", message);
}
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->bytes.size() - source->place) png_error(png, "the file ends too early");
  std::memcpy(to, source->bytes.data() + source->place, count);
  source->place += count;
}

struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

struct Writer {
  png_structp png = nullptr;
  png_infop info = nullptr;
  ~Writer() { png_destroy_write_struct(&png, &info); }
};

std::vector<png_bytep> rows_of(std::uint8_t* pixels, int height, std::size_t stride) {
  std::vector<png_bytep> rows(static_cast<std::size_t>(height));
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = pixels + y * stride;
  return rows;
}

// Grey in one byte, or 16 bits, high byte first. Pillow's mode I;16 keeps values above 255 when it
// becomes RGB no better than by cutting them off.
Image from_grey(const std::vector<std::uint8_t>& grey, int width, int height, bool wide) {
  Image image(width, height);
  std::uint8_t* to = image.pixels().data();
  const std::size_t count = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  for (std::size_t i = 0; i < count; ++i, to += 3) {
    const std::uint8_t value = !wide ? grey[i] : grey[2 * i] ? 255 : grey[2 * i + 1];
    to[0] = to[1] = to[2] = value;
  }
  return image;
}

}  // namespace

Image decode_png(std::string_view bytes, const std::string& name) {
  Source source{.bytes = bytes, .name = name};
  Reader reader;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, const_cast<std::string*>(&name),
                                      on_error, on_warning);
  if (reader.png) reader.info = png_create_info_struct(reader.png);
  if (!reader.info) fail(ErrorCode::internal, "image", name, ": libpng has no memory");
  png_structp png = reader.png;
  png_set_read_fn(png, &source, read_bytes);
  // Comments and profiles are not used; without a bound a small file could ask for gigabytes.
  png_set_chunk_malloc_max(png, 8 << 20);
  png_read_info(png, reader.info);

  const int width = static_cast<int>(png_get_image_width(png, reader.info));
  const int height = static_cast<int>(png_get_image_height(png, reader.info));
  const int depth = png_get_bit_depth(png, reader.info);
  const int colour = png_get_color_type(png, reader.info);
  // Deflate shrinks at most 1032 times, and a byte holds at most 8 pixels.
  check_image_size(width, height, bytes.size(), std::int64_t{8} * 1032, name);

  // Grey of 16 bits without alpha is the one case in which Pillow does not take the high byte.
  const bool wide_grey = colour == PNG_COLOR_TYPE_GRAY && depth == 16;
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colour == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
  if (depth == 16 && !wide_grey) png_set_strip_16(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);

  const std::size_t stride = png_get_rowbytes(png, reader.info);
  const bool grey = !(colour & PNG_COLOR_MASK_COLOR);
  const std::size_t pixel_bytes = !grey ? 3 : wide_grey ? 2 : 1;
  if (stride != pixel_bytes * static_cast<std::size_t>(width)) {
    fail(ErrorCode::internal, "image", name, ": libpng gives rows of ", stride, " bytes");
  }
  if (!grey) {
    Image image(width, height);
    png_read_image(png, rows_of(image.pixels().data(), height, stride).data());
    png_read_end(png, nullptr);
    return image;
  }
  std::vector<std::uint8_t> values(stride * static_cast<std::size_t>(height));
  png_read_image(png, rows_of(values.data(), height, stride).data());
  png_read_end(png, nullptr);
  return from_grey(values, width, height, wide_grey);
}

std::string encode_png(const ImageView& image) {
  static const std::string kName = "picture";
  std::string bytes;
  Writer writer;
  writer.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, const_cast<std::string*>(&kName),
                                       on_error, on_warning);
  if (writer.png) writer.info = png_create_info_struct(writer.png);
  if (!writer.info) fail(ErrorCode::internal, "image", "libpng has no memory");
  png_set_write_fn(
      writer.png, &bytes,
      [](png_structp png, png_bytep data, std::size_t count) {
        static_cast<std::string*>(png_get_io_ptr(png))
            ->append(reinterpret_cast<const char*>(data), count);
      },
      [](png_structp) {});
  png_set_IHDR(writer.png, writer.info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer.png, writer.info);
  for (int y = 0; y < image.height; ++y) png_write_row(writer.png, image.row(y));
  png_write_end(writer.png, writer.info);
  return bytes;
}

}  // namespace mhla::io
