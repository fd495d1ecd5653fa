// Data sets of labelled pictures: CIFAR, IDX (MNIST), folders of classes, and a built-in one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/image.h"

namespace mhla::data {

struct ImageSize {
  int width = 0, height = 0;
  bool operator==(const ImageSize&) const = default;
};

// All functions may be called by several threads at once.
class ImageSet {
 public:
  virtual ~ImageSet() = default;
  virtual std::string format() const = 0;  // "cifar10", "idx", "folder" ...
  virtual std::int64_t size() const = 0;
  virtual std::int64_t target(std::int64_t index) const = 0;  // 0 <= it < classes().size()
  virtual io::Image picture(std::int64_t index) const = 0;    // throws an error that names it
  virtual std::string name(std::int64_t index) const = 0;     // "train/n01443537/3.JPEG"
  virtual std::optional<ImageSize> picture_size() const = 0;  // when all have the same
  const std::vector<std::string>& classes() const { return classes_; }

 protected:
  std::vector<std::string> classes_;
};

struct ImageSource {
  // "relations" is the built-in set. Otherwise a folder or a .tar, .tar.gz of it, with data_batch_*
  // and test_batch (CIFAR-10), train and test.bin (CIFAR-100), *-ubyte (IDX), or pictures in
  // train/CLASS and val/CLASS, or in CLASS alone.
  std::string path = "relations";
  std::string split = "train";  // or "val", of which "test" is another name
  // Of the built-in set:
  int image_size = 32;
  std::int64_t samples = 0;  // 0: 20000 to train, 2000 to evaluate
  std::uint64_t seed = 0;
  // Of folders: decoded pictures are kept until they take this many bytes.
  std::int64_t cache_bytes = std::int64_t{2} << 30;
};

std::unique_ptr<ImageSet> open_image_set(const ImageSource& source);

// Each format by itself.
std::unique_ptr<ImageSet> open_cifar(const std::string& folder, bool train);
std::unique_ptr<ImageSet> open_idx(const std::string& folder, bool train);
std::unique_ptr<ImageSet> open_folder(const ImageSource& source, bool train);
std::unique_ptr<ImageSet> make_relations(const ImageSource& source, bool train);

// Whether a folder holds such files.
bool is_cifar(const std::string& folder);
bool is_idx(const std::string& folder);

}  // namespace mhla::data
