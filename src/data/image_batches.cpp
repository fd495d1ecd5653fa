// A queue of batches under construction: the caller opens them in order, workers take samples of
// the first that has any left, and the caller waits for the front one.
#include "data/image_batches.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "data/sampler.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

constexpr std::int64_t kChunk =
    8;  // samples a worker takes at once; small, so that all finish together
constexpr std::uint64_t kAugment = 0x61756721;

struct Open {
  std::int64_t epoch = 0;
  std::vector<Sample> samples;
  BatchMemory memory;
  std::int64_t taken = 0, done = 0;  // under the lock
  std::vector<char> left_out;        // by sample; each worker writes its own
  std::exception_ptr error;          // of the lowest sample, whoever found it
  std::int64_t error_at = -1;
};
using OpenPointer = std::shared_ptr<Open>;

ImageSource source_of(const ImageLoaderOptions& options) {
  ImageSource source = options.source;
  source.image_size = options.image_size;
  return source;
}

double crop_part_of(const ImageLoaderOptions& options, const ImageSet& set) {
  if (options.crop_part != 0) return options.crop_part;
  const ImageSize wanted{options.image_size, options.image_size};
  return set.picture_size() == wanted ? 1 : 0.875;
}

Sampler::Options sampler_options(const ImageLoaderOptions& options, const ImageSet& set) {
  if (options.repeats > 1 && !options.train) fail("data", "repeats: only for training");
  return {.size = set.size(),
          .batch = options.batch,
          .seed = options.seed,
          .shuffle = options.train,
          .drop_last = options.drop_last.value_or(options.train),
          .repeats = options.repeats,
          .share = options.share};
}

int worker_count(int asked) {
  if (asked < -1 || asked > 1024) fail("data", "workers: expected -1 to 1024, got ", asked);
  if (asked >= 0) return asked;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) * 3 / 4);
}

}  // namespace

class ImageBatches::Worker {
 public:
  Worker(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options,
         MakeMemory make_memory)
      : set_(std::move(set)),
        options_(options),
        make_memory_(std::move(make_memory)),
        sampler_(sampler_options(options, *set_)),
        train_(options.augmentation, options.image_size, options.normalisation),
        eval_(options.image_size, crop_part_of(options, *set_), options.eval_filter,
              options.normalisation) {
    if (options.prefetch < 1 || options.prefetch > 1024) {
      fail("data", "prefetch: expected 1 to 1024 batches, got ", options.prefetch);
    }
    const int workers = worker_count(options.workers);
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const ImageSet& set() const { return *set_; }
  std::int64_t batches() const { return sampler_.batches(); }

  void seek(std::int64_t epoch, std::int64_t batch) {
    if (epoch < 0 || batch < 0 || batch >= batches()) {
      fail("data", "seek: there is no batch ", batch, " of epoch ", epoch, "; an epoch has ",
           batches());
    }
    const std::lock_guard lock(mutex_);
    queue_.clear();  // who works on one of them keeps it until done
    epoch_ = epoch;
    batch_ = batch;
  }

  Filled next() {
    open_more();
    OpenPointer front;
    if (threads_.empty()) {
      front = queue_.front();
      while (const std::int64_t count = take(*front)) fill(*front, front->taken - count, count);
    } else {
      std::unique_lock lock(mutex_);
      front = queue_.front();
      is_done_.wait(lock, [&] { return front->done == size_of(*front); });
    }
    {
      const std::lock_guard lock(mutex_);
      queue_.pop_front();
    }
    if (!threads_.empty()) open_more();
    if (front->error) std::rethrow_exception(front->error);
    return {front->memory, close_gaps(*front)};
  }

 private:
  static std::int64_t size_of(const Open& open) {
    return static_cast<std::int64_t>(open.samples.size());
  }

  // Called by the consumer alone.
  void open_more() {
    const std::size_t wanted = threads_.empty() ? 1 : static_cast<std::size_t>(options_.prefetch);
    while (queue_.size() < wanted) {
      auto open = std::make_shared<Open>();
      open->epoch = epoch_;
      open->samples = sampler_.batch(epoch_, batch_);
      open->memory = make_memory_(size_of(*open));
      open->left_out.resize(open->samples.size());
      {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(open));
      }
      has_work_.notify_all();
      if (++batch_ == batches()) batch_ = 0, ++epoch_;
    }
  }

  // Marks the next samples of a batch as taken and says how many.
  static std::int64_t take(Open& open) {
    const std::int64_t count = std::min(kChunk, size_of(open) - open.taken);
    open.taken += count;
    return count;
  }

  void work() {
    while (true) {
      OpenPointer open;
      std::int64_t first = 0, count = 0;
      {
        std::unique_lock lock(mutex_);
        has_work_.wait(lock, [&] { return stopping_ || (open = unfinished()); });
        if (stopping_) return;
        first = open->taken;
        count = take(*open);
      }
      fill(*open, first, count);
      bool complete = false;
      {
        const std::lock_guard lock(mutex_);
        open->done += count;
        complete = open->done == size_of(*open);
        open.reset();  // before the caller goes on: what is in it is the caller's to free
      }
      if (complete) is_done_.notify_one();
    }
  }

  OpenPointer unfinished() const {
    for (const OpenPointer& open : queue_) {
      if (open->taken < size_of(*open)) return open;
    }
    return nullptr;
  }

  void fill(Open& open, std::int64_t first, std::int64_t count) {
    const std::int64_t each = std::int64_t{3} * options_.image_size * options_.image_size;
    for (std::int64_t i = first; i < first + count; ++i) {
      const Sample& sample = open.samples[static_cast<std::size_t>(i)];
      try {
        const std::int64_t index = transform(open.epoch, sample, open.memory.images + i * each);
        if (index < 0) {
          open.left_out[static_cast<std::size_t>(i)] = 1;
        } else {
          open.memory.targets[i] = set_->target(index);
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (open.error_at < 0 || i < open.error_at) {
          open.error = std::current_exception();
          open.error_at = i;
        }
      }
    }
  }

  // Returns the index that was used, or -1 where an unreadable picture is left out.
  std::int64_t transform(std::int64_t epoch, const Sample& sample, float* to) {
    for (std::int64_t tried = 0; tried < set_->size(); ++tried) {
      const std::int64_t index = (sample.index + tried) % set_->size();
      try {
        const io::Image image = set_->picture(index);
        if (options_.train) {
          Random random(options_.seed, kAugment, static_cast<std::uint64_t>(epoch),
                        static_cast<std::uint64_t>(sample.position));
          train_(image.view(), random, to);
        } else {
          eval_(image.view(), to);
        }
        return index;
      } catch (const Error& error) {
        if (options_.on_error == OnError::stop) throw;
        tell(index, error.what());
        if (!options_.train) return -1;
      }
    }
    fail(ErrorCode::corrupt_data, "data", "none of the ", set_->size(), " pictures can be read");
  }

  // Once for each picture, not in every epoch.
  void tell(std::int64_t index, const char* what) {
    const std::lock_guard lock(telling_);
    if (!told_.insert(index).second) return;
    if (options_.on_skip) return options_.on_skip(what);
    std::fprintf(stderr, "mhla: warning: skipped: %s\n", what);
  }

  // Moves what follows a left-out sample forward; returns how many remain.
  std::int64_t close_gaps(Open& open) const {
    const std::size_t each = std::size_t{3} * options_.image_size * options_.image_size;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < open.samples.size(); ++i) {
      if (open.left_out[i]) continue;
      if (kept != i) {
        std::memcpy(open.memory.images + kept * each, open.memory.images + i * each,
                    each * sizeof(float));
        open.memory.targets[kept] = open.memory.targets[i];
      }
      ++kept;
    }
    return static_cast<std::int64_t>(kept);
  }

  std::shared_ptr<const ImageSet> set_;
  ImageLoaderOptions options_;
  MakeMemory make_memory_;
  Sampler sampler_;  // used by the consumer alone
  TrainTransform train_;
  EvalTransform eval_;
  std::int64_t epoch_ = 0, batch_ = 0;  // the next to open

  std::mutex mutex_, telling_;
  std::set<std::int64_t> told_;
  std::condition_variable has_work_, is_done_;
  std::deque<OpenPointer> queue_;  // only the consumer changes it, under the lock
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

ImageBatches::ImageBatches(const ImageLoaderOptions& options, MakeMemory make_memory)
    : ImageBatches(open_image_set(source_of(options)), options, std::move(make_memory)) {}

ImageBatches::ImageBatches(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options,
                           MakeMemory make_memory)
    : worker_(std::make_unique<Worker>(std::move(set), options, std::move(make_memory))) {}

ImageBatches::~ImageBatches() = default;

const ImageSet& ImageBatches::set() const { return worker_->set(); }
std::int64_t ImageBatches::batches_per_epoch() const { return worker_->batches(); }
void ImageBatches::seek(std::int64_t epoch, std::int64_t batch) { worker_->seek(epoch, batch); }
ImageBatches::Filled ImageBatches::next() { return worker_->next(); }

BatchMemory plain_memory(std::int64_t samples, int image_size) {
  struct Both {
    std::vector<float> images;
    std::vector<std::int64_t> targets;
  };
  const auto both = std::make_shared<Both>();
  both->images.resize(static_cast<std::size_t>(samples) * 3 * image_size * image_size);
  both->targets.resize(static_cast<std::size_t>(samples));
  return {both->images.data(), both->targets.data(), both};
}

}  // namespace mhla::data
