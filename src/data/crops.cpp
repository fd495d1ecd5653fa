// Crops and the resizing around them.
#include "data/crops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "mhla/error.h"

namespace mhla::data {
namespace {

// Python's round(): halves go to the even number.
int rounded(double x) { return static_cast<int>(std::nearbyint(x)); }

Part centred(int width, int height, int part_width, int part_height) {
  part_width = std::clamp(part_width, 1, width);
  part_height = std::clamp(part_height, 1, height);
  return {(width - part_width) / 2, (height - part_height) / 2, part_width, part_height};
}

}  // namespace

Part random_part(int width, int height, const CropRange& range, Random& random) {
  const double area = static_cast<double>(width) * height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(range.smallest, range.largest);
    const double aspect = std::exp(
        random.uniform(std::log(range.narrowest), std::log(range.widest)));
    const int w = rounded(std::sqrt(target * aspect)), h = rounded(std::sqrt(target / aspect));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const int y = static_cast<int>(random.below(height - h + 1));
    const int x = static_cast<int>(random.below(width - w + 1));
    return {x, y, w, h};
  }
  const double aspect = static_cast<double>(width) / height;
  if (aspect < range.narrowest) {
    return centred(width, height, width, rounded(width / range.narrowest));
  }
  if (aspect > range.widest) return centred(width, height, rounded(height * range.widest), height);
  return {0, 0, width, height};
}

io::Image resized_part(const io::ImageView& image, const Part& part, int size, io::Filter filter) {
  return io::resize(image.crop(part.x, part.y, part.width, part.height), size, size, filter);
}

io::Image pad_and_crop(const io::ImageView& image, int padding, Colour fill, Random& random) {
  if (padding < 0 || padding > 1 << 20) fail("data", "pad_crop: cannot add ", padding, " pixels");
  const int down = static_cast<int>(random.below(2 * padding + 1)) - padding;
  const int right = static_cast<int>(random.below(2 * padding + 1)) - padding;
  io::Image result(image.width, image.height, fill[0], fill[1], fill[2]);
  const int first = std::max(0, -right), last = std::min(image.width, image.width - right);
  if (first >= last) return result;
  for (int y = std::max(0, -down); y < std::min(image.height, image.height - down); ++y) {
    std::memcpy(result.row(y) + std::ptrdiff_t{3} * first,
                image.row(y + down) + std::ptrdiff_t{3} * (first + right),
                3 * static_cast<std::size_t>(last - first));
  }
  return result;
}

io::Image centre(const io::ImageView& image, int size, double crop_part, io::Filter filter) {
  if (!(crop_part > 0 && crop_part <= 1)) {
    fail("data", "crop_part: expected above 0 and at most 1, got ", crop_part);
  }
  const double asked = std::floor(size / crop_part);
  if (asked > 1 << 20) fail("data", "crop_part: ", crop_part, " of a picture makes it too large");
  const int shorter = static_cast<int>(asked);
  const bool wide = image.width >= image.height;
  const std::int64_t small = wide ? image.height : image.width;
  const std::int64_t large = wide ? image.width : image.height;
  const int longer = static_cast<int>(std::min<std::int64_t>(shorter * large / small, 1 << 20));
  const int width = wide ? longer : shorter, height = wide ? shorter : longer;
  const io::Image scaled = io::resize(image, width, height, filter);
  const int x = rounded((width - size) / 2.0), y = rounded((height - size) / 2.0);
  return io::Image(scaled.view().crop(x, y, size, size));
}

}  // namespace mhla::data
