// Pictures as 8-bit RGB: reading and writing PNG and JPEG, as Pillow's open(...).convert("RGB")
// does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mhla::io {

// Borrowed pixels: `stride` bytes from row to row, three bytes a pixel.
struct ImageView {
  const std::uint8_t* pixels = nullptr;  // [height, width, 3], rows `stride` apart
  int width = 0, height = 0;
  std::ptrdiff_t stride = 0;

  const std::uint8_t* row(int y) const { return pixels + y * stride; }
  // A part of it; throws unless it lies inside.
  ImageView crop(int x, int y, int part_width, int part_height) const;
};

class Image {
 public:
  Image() = default;
  // All pixels of one colour; throws for a size that is not positive or above kMostPixels.
  Image(int width, int height, std::uint8_t r = 0, std::uint8_t g = 0, std::uint8_t b = 0);
  explicit Image(const ImageView& view);

  int width() const { return width_; }
  int height() const { return height_; }
  std::uint8_t* row(int y) { return pixels_.data() + offset(y); }
  const std::uint8_t* row(int y) const { return pixels_.data() + offset(y); }
  std::vector<std::uint8_t>& pixels() { return pixels_; }  // [height, width, 3]
  const std::vector<std::uint8_t>& pixels() const { return pixels_; }
  ImageView view() const { return {pixels_.data(), width_, height_, std::ptrdiff_t{3} * width_}; }
  bool operator==(const Image&) const = default;

 private:
  std::size_t offset(int y) const {
    return static_cast<std::size_t>(y) * 3 * static_cast<std::size_t>(width_);
  }
  int width_ = 0, height_ = 0;
  std::vector<std::uint8_t> pixels_;
};

// Pillow refuses larger ones too (twice its MAX_IMAGE_PIXELS), as attempts to fill the memory.
inline constexpr std::int64_t kMostPixels = 178'956'970;

enum class ImageFormat { unknown, png, jpeg };
ImageFormat image_format(std::string_view bytes);  // by the first bytes

// Throw Error(corrupt_data) with `name` in front of what is wrong with the file, Error(unsupported)
// where this build has no decoder for it.
Image decode_image(std::string_view bytes, const std::string& name);
Image read_image(const std::string& path);

std::string encode_png(const ImageView& image);
std::string encode_jpeg(const ImageView& image, int quality = 95);
// By the ending of the name: .png, .jpg, .jpeg; throws for another one.
ImageFormat image_format_of_name(const std::string& path);
// What was there stays until all of the new picture is on the disk.
void write_image(const std::string& path, const ImageView& image);

// The decoders themselves.
Image decode_png(std::string_view bytes, const std::string& name);
Image decode_jpeg(std::string_view bytes, const std::string& name);

// Throws unless the size is positive, below kMostPixels and possible for that many bytes, each of
// which can hold at most `pixels_per_byte`.
void check_image_size(std::int64_t width, std::int64_t height, std::size_t bytes,
                      std::int64_t pixels_per_byte, const std::string& name);

}  // namespace mhla::io
