// Shuffling by epoch, repeated augmentation and the share of a process.
#include "data/sampler.h"

#include <algorithm>
#include <numeric>

#include "data/random.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

constexpr std::uint64_t kOrder = 0x6f72646572;  // its numbers differ from those of augmentation

// DeiT's sampler counts whole groups of 256 of the repeated list as an epoch, which is about as
// long as one without repeats.
std::int64_t epoch_length(std::int64_t size, int repeats) {
  return repeats > 1 && size >= 256 ? size / 256 * 256 : size;
}

}  // namespace

Sampler::Sampler(const Options& options) : options_(options) {
  if (options.size < 1) fail("data", "the data set is empty");
  if (options.batch < 1) fail("data", "batch: expected 1 or more, got ", options.batch);
  if (options.repeats < 1 || options.repeats > 1000) {
    fail("data", "repeats: expected 1 to 1000, got ", options.repeats);
  }
  if (options.share.world < 1 || options.share.rank < 0 ||
      options.share.rank >= options.share.world) {
    fail("data", "share: there is no rank ", options.share.rank, " of ", options.share.world);
  }
  length_ = epoch_length(options.size, options.repeats);
  batches_ = options.drop_last ? length_ / options.batch
                               : (length_ + options.batch - 1) / options.batch;
  if (batches_ == 0) {
    fail("data", "batch: ", options.batch, " is more than the ", length_,
         " samples of an epoch, and a smaller last batch is dropped");
  }
}

void Sampler::permute(std::int64_t epoch) {
  if (epoch == epoch_) return;
  order_.resize(static_cast<std::size_t>(options_.size));
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  Random random(options_.seed, kOrder, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[static_cast<std::size_t>(random.below(std::int64_t(i) + 1))]);
  }
  epoch_ = epoch;
}

std::vector<Sample> Sampler::batch(std::int64_t epoch, std::int64_t number) {
  if (epoch < 0 || number < 0 || number >= batches_) {
    fail("data", "there is no batch ", number, " of epoch ", epoch, "; an epoch has ", batches_);
  }
  if (options_.shuffle) permute(epoch);
  const std::int64_t start = number * options_.batch;
  const std::int64_t count = std::min(options_.batch, length_ - start);
  const std::int64_t rank = options_.share.rank, world = options_.share.world;
  std::vector<Sample> samples;
  for (std::int64_t i = count * rank / world; i < count * (rank + 1) / world; ++i) {
    const std::int64_t place = (start + i) / options_.repeats;
    const std::int64_t index = options_.shuffle ? order_[static_cast<std::size_t>(place)] : place;
    samples.push_back({index, start + i});
  }
  return samples;
}

}  // namespace mhla::data
