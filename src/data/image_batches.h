// Batches of pictures, prepared ahead by worker threads. Which samples a batch holds, and how they
// are augmented, depends on seed, epoch and batch number alone: not on the number of workers, nor
// on how many processes share it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/augment.h"
#include "data/image_set.h"
#include "data/share.h"

namespace mhla::data {

enum class OnError {
  stop,  // next() throws an error that names the file
  skip,  // training takes the next readable picture instead, evaluation leaves it out
};

struct ImageLoaderOptions {
  ImageSource source;  // its image_size is the one below; its seed draws the built-in set
  int image_size = 32;
  std::int64_t batch = 128;  // of all processes together
  std::uint64_t seed = 0;
  bool train = true;  // shuffled and augmented; else in order, resized and cropped to the centre

  Augmentation augmentation = Augmentation::recipe();  // when training
  Normalisation normalisation;
  double crop_part = 0;  // when evaluating; 0: 1 where all pictures have image_size, else .875
  io::Filter eval_filter = io::Filter::bicubic;
  int repeats = 1;  // repeated augmentation: each sample this often in a row, as DeiT's RASampler

  Share share;
  int workers = -1;               // threads; 0: the caller's own, -1: three quarters of the cores
  int prefetch = 4;               // batches
  std::optional<bool> drop_last;  // a smaller last batch; when empty: only while training
  OnError on_error = OnError::stop;
  std::function<void(const std::string&)> on_skip;  // told the error; when empty: stderr
};

// Where a batch is written. `owner` keeps the memory.
struct BatchMemory {
  float* images = nullptr;          // [samples, 3, image_size, image_size]
  std::int64_t* targets = nullptr;  // [samples]
  std::shared_ptr<void> owner;
};
using MakeMemory = std::function<BatchMemory(std::int64_t samples)>;

class ImageBatches {
 public:
  struct Filled {
    BatchMemory memory;
    std::int64_t samples = 0;
  };

  ImageBatches(const ImageLoaderOptions& options, MakeMemory make_memory);
  // With a data set that is open already.
  ImageBatches(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options,
               MakeMemory make_memory);
  ~ImageBatches();
  ImageBatches(const ImageBatches&) = delete;
  ImageBatches& operator=(const ImageBatches&) = delete;

  const ImageSet& set() const;
  std::int64_t batches_per_epoch() const;
  void seek(std::int64_t epoch, std::int64_t batch);
  Filled next();

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

// Memory of its own.
BatchMemory plain_memory(std::int64_t samples, int image_size);

}  // namespace mhla::data
