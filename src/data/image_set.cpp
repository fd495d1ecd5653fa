// Which format a path holds.
#include "data/image_set.h"

#include <filesystem>

#include "mhla/error.h"

namespace mhla::data {

namespace {

std::unique_ptr<ImageSet> open_any(const ImageSource& source, bool train) {
  if (source.path == "relations") return make_relations(source, train);
  if (!std::filesystem::exists(source.path)) {
    fail(ErrorCode::io, "data", "no data set at '", source.path,
         "' (a folder, a tar file, or 'relations', the built-in one)");
  }
  if (std::filesystem::is_directory(source.path)) {
    if (is_cifar(source.path)) return open_cifar(source.path, train);
    if (is_idx(source.path)) return open_idx(source.path, train);
  }
  return open_folder(source, train);
}

}  // namespace

std::unique_ptr<ImageSet> open_image_set(const ImageSource& source) {
  const bool train = source.split == "train";
  if (!train && source.split != "val" && source.split != "test") {
    fail("data", "split: unknown '", source.split, "'; known: train, val, test");
  }
  std::unique_ptr<ImageSet> set = open_any(source, train);
  if (set->size() < 1) {
    fail(ErrorCode::corrupt_data, "data", "'", source.path, "' holds no pictures of the split ",
         source.split);
  }
  return set;
}

}  // namespace mhla::data
