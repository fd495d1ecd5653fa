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
  std::int64_t classes() const { return classes_; }  // known once a loader was made

 private:
  data::ImageLoaderOptions options_;
  std::int64_t train_samples_ = 0, test_samples_ = 0;  // of the built-in set
  std::int64_t classes_ = 0;
};

}  // namespace mhla::tasks
