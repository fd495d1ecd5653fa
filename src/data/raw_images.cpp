// Pictures in memory, and the small files around them.
#include "data/raw_images.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

class RawSet final : public ImageSet {
 public:
  explicit RawSet(RawImages raw) : raw_(std::move(raw)) { classes_ = raw_.classes; }
  std::string format() const override { return raw_.format; }
  std::int64_t size() const override { return static_cast<std::int64_t>(raw_.targets.size()); }
  std::int64_t target(std::int64_t index) const override {
    return raw_.targets.at(static_cast<std::size_t>(index));
  }
  io::Image picture(std::int64_t index) const override {
    const std::size_t each = std::size_t{3} * raw_.width * raw_.height;
    const std::uint8_t* pixels = raw_.pixels.data() + static_cast<std::size_t>(index) * each;
    return io::Image({pixels, raw_.width, raw_.height, std::ptrdiff_t{3} * raw_.width});
  }
  std::string name(std::int64_t index) const override {
    return raw_.where + " #" + std::to_string(index);
  }
  std::optional<ImageSize> picture_size() const override {
    return ImageSize{raw_.width, raw_.height};
  }

 private:
  RawImages raw_;
};

}  // namespace

std::unique_ptr<ImageSet> make_raw_images(RawImages raw) {
  for (std::size_t i = 0; i < raw.targets.size(); ++i) {
    if (raw.targets[i] >= raw.classes.size()) {
      fail(ErrorCode::corrupt_data, "data", raw.where, " #", i, ": label ",
           static_cast<int>(raw.targets[i]), " of ", raw.classes.size(), " classes");
    }
  }
  return std::make_unique<RawSet>(std::move(raw));
}

std::string find_packed(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".xz", ".gz"}) {
    std::string path = (std::filesystem::path(folder) / (name + ending)).string();
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  if (!std::filesystem::exists(path)) return lines;
  std::istringstream text(io::read_unpacked(path, std::size_t{1} << 20));
  for (std::string line; std::getline(text, line);) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

}  // namespace mhla::data
