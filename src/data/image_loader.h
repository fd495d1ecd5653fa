// Batches of pictures as LibTorch tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/image_batches.h"
#include "data/loader.h"

namespace mhla::data {

class ImageLoader : public Loader {
 public:
  virtual const std::vector<std::string>& classes() const = 0;
  virtual std::int64_t size() const = 0;  // samples of the data set
};

// Tensors of a batch: "image" f32 [b, 3, image_size, image_size], normalised, and "target" int64
// [b], where b is this process's share. In pinned memory where there is a GPU; each batch has
// memory of its own.
std::unique_ptr<ImageLoader> make_image_loader(const ImageLoaderOptions& options);

}  // namespace mhla::data
