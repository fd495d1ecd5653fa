// The section `data` of a configuration of pictures, and the loaders made from it.
#pragma once

#include <memory>

#include "data/image_batches.h"
#include "io/config.h"
#include "tasks/task.h"

namespace mhla::tasks {

class ImageData {
 public:
  explicit ImageData(io::Config& config);
  std::unique_ptr<data::Loader> loader(const LoaderRequest& request);
  // Known once a loader was made.
  std::int64_t classes() const { return static_cast<std::int64_t>(names_.size()); }
  const std::string& name_of(std::int64_t label) const {
    return names_.at(static_cast<std::size_t>(label));
  }

  // A normalised picture of a batch as a PNG file.
  std::string png(const at::Tensor& image) const;  // [3, H, W]

 private:
  data::ImageLoaderOptions options_;
  std::int64_t train_samples_ = 0, test_samples_ = 0;  // of the built-in set
  std::vector<std::string> names_;                     // of the classes
};

}  // namespace mhla::tasks
