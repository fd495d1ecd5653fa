// The IDX files of MNIST and its likes, packed or not; grey becomes three equal channels.
#include <algorithm>
#include <filesystem>

#include "data/raw_images.h"
#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

struct Idx {
  std::vector<std::int64_t> sizes;
  std::string bytes;  // with the header
  std::size_t start = 0;
};

std::string find_part(const std::string& folder, bool train, const char* part) {
  for (const char* separator : {"-", "."}) {  // some copies are named images.idx3-ubyte
    const std::string name = std::string(train ? "train-" : "t10k-") + part + separator +
                             (std::string(part) == "images" ? "idx3" : "idx1") + "-ubyte";
    if (std::string path = find_packed(folder, name); !path.empty()) return path;
  }
  return {};
}

// Header: two zeros, 8 (bytes), the number of axes, then their sizes in big-endian words.
Idx read_idx(const std::string& path, std::size_t axes) {
  Idx idx{.sizes = {}, .bytes = io::read_unpacked(path), .start = 4 + 4 * axes};
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::corrupt_data, "data", path, ": not an IDX file: ", why...);
  };
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(idx.bytes[i]); };
  if (idx.bytes.size() < idx.start) refuse("it has only ", idx.bytes.size(), " bytes");
  if (byte(0) != 0 || byte(1) != 0 || byte(2) != 8 || byte(3) != axes) {
    refuse("expected ", axes, " axes of bytes, and it does not start so");
  }
  std::size_t total = 1;
  for (std::size_t i = 0; i < axes; ++i) {
    std::size_t size = 0;
    for (std::size_t b = 0; b < 4; ++b) size = size * 256 + byte(4 + 4 * i + b);
    idx.sizes.push_back(static_cast<std::int64_t>(size));
    if (size != 0 && total > io::kMostUnpacked / size) refuse("its sizes are too large");
    total *= size;
  }
  if (idx.bytes.size() - idx.start != total) {
    refuse("expected ", total, " bytes of data, got ", idx.bytes.size() - idx.start);
  }
  return idx;
}

}  // namespace

bool is_idx(const std::string& folder) {
  return !find_part(folder, true, "images").empty() || !find_part(folder, false, "images").empty();
}

std::unique_ptr<ImageSet> open_idx(const std::string& folder, bool train) {
  const std::string images_path = find_part(folder, train, "images");
  const std::string labels_path = find_part(folder, train, "labels");
  for (const auto& [path, part] : {std::pair(images_path, "images"), {labels_path, "labels"}}) {
    if (path.empty()) {
      fail(ErrorCode::io, "data", "'", folder, "' has no ", train ? "train-" : "t10k-", part,
           "-idx*-ubyte (nor .gz of it)");
    }
  }
  const Idx images = read_idx(images_path, 3), labels = read_idx(labels_path, 1);
  if (images.sizes[0] != labels.sizes[0]) {
    fail(ErrorCode::corrupt_data, "data", images_path, ": ", images.sizes[0], " pictures, but ",
         labels.sizes[0], " labels in ", labels_path);
  }
  if (images.sizes[1] < 1 || images.sizes[2] < 1 || images.sizes[1] * images.sizes[2] > 1 << 24) {
    fail(ErrorCode::corrupt_data, "data", images_path, ": pictures of ", images.sizes[2], "x",
         images.sizes[1]);
  }
  RawImages raw{.format = "idx",
                .where = images_path,
                .width = static_cast<int>(images.sizes[2]),
                .height = static_cast<int>(images.sizes[1]),
                .pixels = {},
                .targets = {labels.bytes.begin() + static_cast<std::ptrdiff_t>(labels.start),
                            labels.bytes.end()},
                .classes = {}};
  raw.pixels.resize(3 * (images.bytes.size() - images.start));
  for (std::size_t i = images.start, to = 0; i < images.bytes.size(); ++i, to += 3) {
    std::fill_n(raw.pixels.begin() + static_cast<std::ptrdiff_t>(to), 3,
                static_cast<std::uint8_t>(images.bytes[i]));
  }
  const int most = raw.targets.empty() ? 0
                                       : *std::max_element(raw.targets.begin(), raw.targets.end());
  for (int i = 0; i <= std::max(most, 9); ++i) raw.classes.push_back(std::to_string(i));
  return make_raw_images(std::move(raw));
}

}  // namespace mhla::data
