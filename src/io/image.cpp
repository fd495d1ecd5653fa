// Pictures in memory, and the choice of the decoder.
#include "io/image.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>

#include "io/file_bytes.h"
#include "mhla/core/atomic_file.h"
#include "mhla/error.h"

namespace mhla::io {

ImageView ImageView::crop(int x, int y, int part_width, int part_height) const {
  if (x < 0 || y < 0 || part_width <= 0 || part_height <= 0 || x > width - part_width ||
      y > height - part_height) {
    fail("image", "crop: ", part_width, "x", part_height, " at (", x, ", ", y, ") is not inside ",
         width, "x", height);
  }
  return {row(y) + std::ptrdiff_t{3} * x, part_width, part_height, stride};
}

Image::Image(int width, int height, std::uint8_t r, std::uint8_t g, std::uint8_t b)
    : width_(width), height_(height) {
  if (width <= 0 || height <= 0 || std::int64_t{width} * height > kMostPixels) {
    fail("image", "size: expected 1x1 to ", kMostPixels, " pixels, got ", width, "x", height);
  }
  pixels_.resize(offset(height));
  if (r == g && g == b) {
    std::fill(pixels_.begin(), pixels_.end(), r);
    return;
  }
  for (std::size_t i = 0; i < pixels_.size(); i += 3) {
    pixels_[i] = r;
    pixels_[i + 1] = g;
    pixels_[i + 2] = b;
  }
}

Image::Image(const ImageView& view) : Image(view.width, view.height) {
  for (int y = 0; y < height_; ++y) {
    std::memcpy(row(y), view.row(y), 3 * static_cast<std::size_t>(width_));
  }
}

ImageFormat image_format(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return ImageFormat::png;
  if (bytes.starts_with("\xff\xd8\xff")) return ImageFormat::jpeg;
  return ImageFormat::unknown;
}

Image decode_image(std::string_view bytes, const std::string& name) {
  switch (image_format(bytes)) {
    case ImageFormat::png: return decode_png(bytes, name);
    case ImageFormat::jpeg: return decode_jpeg(bytes, name);
    case ImageFormat::unknown: break;
  }
  fail(ErrorCode::corrupt_data, "image", name, ": ",
       bytes.empty() ? "the file is empty" : "neither PNG nor JPEG");
}

Image read_image(const std::string& path) {
  return decode_image(FileBytes::map(path)->bytes(), path);
}

ImageFormat image_format_of_name(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ending == ".png") return ImageFormat::png;
  if (ending == ".jpg" || ending == ".jpeg") return ImageFormat::jpeg;
  fail("image", "cannot write '", path, "': the name must end in .png, .jpg or .jpeg");
}

void write_image(const std::string& path, const ImageView& image) {
  const bool png = image_format_of_name(path) == ImageFormat::png;
  const std::string bytes = png ? encode_png(image) : encode_jpeg(image);
  AtomicFile file(path, "image");
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void check_image_size(std::int64_t width, std::int64_t height, std::size_t bytes,
                      std::int64_t pixels_per_byte, const std::string& name) {
  if (width <= 0 || height <= 0) {
    fail(ErrorCode::corrupt_data, "image", name, ": has size ", width, "x", height);
  }
  if (height > kMostPixels / width) {
    fail(ErrorCode::corrupt_data, "image", name, ": ", width, "x", height,
         " is more than the limit of ", kMostPixels, " pixels");
  }
  if (width * height / pixels_per_byte > static_cast<std::int64_t>(bytes)) {
    fail(ErrorCode::corrupt_data, "image", name, ": ", bytes, " bytes cannot hold ", width, "x",
         height, " pixels");
  }
}

}  // namespace mhla::io
