// Which samples form a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "data/share.h"

namespace mhla::data {

struct Sample {
  std::int64_t index = 0;     // in the data set
  std::int64_t position = 0;  // in the epoch: names the random numbers of its augmentation
};

class Sampler {
 public:
  struct Options {
    std::int64_t size = 0, batch = 1;
    std::uint64_t seed = 0;
    bool shuffle = true, drop_last = true;
    int repeats = 1;
    Share share = {};
  };
  explicit Sampler(const Options& options);

  std::int64_t batches() const { return batches_; }  // per epoch
  // This process's part of a global batch: a run of neighbours, so that the parts of all ranks
  // joined are the batch of one process.
  std::vector<Sample> batch(std::int64_t epoch, std::int64_t number);

 private:
  void permute(std::int64_t epoch);

  Options options_;
  std::int64_t length_, batches_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;  // of epoch_
};

}  // namespace mhla::data
