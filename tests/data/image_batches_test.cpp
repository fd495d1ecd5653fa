// Batches: the same whatever prepares them, in the right order, complete, and honest about errors.
#include "data/image_batches.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "data/sampler.h"
#include "io/files.h"

namespace {

using mhla::Error;
using mhla::data::ImageBatches;
using mhla::data::ImageLoaderOptions;
using mhla::data::Sampler;

constexpr int kSize = 16;
constexpr std::size_t kEach = 3 * kSize * kSize;

ImageLoaderOptions options(std::int64_t samples = 50, std::int64_t batch = 8) {
  ImageLoaderOptions result;
  result.image_size = kSize;
  result.batch = batch;
  result.seed = 3;
  result.source.samples = samples;
  result.workers = 2;
  return result;
}

struct Got {
  std::vector<float> images;
  std::vector<std::int64_t> targets;
  bool operator==(const Got&) const = default;
};

class Loaded {
 public:
  explicit Loaded(const ImageLoaderOptions& o)
      : batches(o, [size = o.image_size](std::int64_t samples) {
          mhla::data::BatchMemory memory = mhla::data::plain_memory(samples, size);
          const std::size_t count = static_cast<std::size_t>(samples) * 3 * size * size;
          std::fill_n(memory.images, count, std::numeric_limits<float>::quiet_NaN());
          std::fill_n(memory.targets, samples, -7);
          return memory;
        }) {}
  Got next() {
    const auto filled = batches.next();
    return {{filled.memory.images, filled.memory.images + filled.samples * kEach},
            {filled.memory.targets, filled.memory.targets + filled.samples}};
  }
  ImageBatches batches;
};

std::vector<Got> take(const ImageLoaderOptions& o, int count) {
  Loaded loaded(o);
  std::vector<Got> result;
  for (int i = 0; i < count; ++i) result.push_back(loaded.next());
  return result;
}

TEST(Batches, DoNotDependOnTheNumberOfWorkersOrOnPrefetch) {
  ImageLoaderOptions o = options();
  o.workers = 0;
  const std::vector<Got> expected = take(o, 14);  // into the third epoch of six batches
  for (const Got& got : expected) {
    EXPECT_EQ(got.targets.size(), 8U);
    EXPECT_TRUE(
        std::none_of(got.images.begin(), got.images.end(), [](float x) { return std::isnan(x); }));
  }
  for (const auto& [workers, prefetch] : {std::pair(1, 1), {2, 4}, {5, 2}, {16, 9}}) {
    o.workers = workers;
    o.prefetch = prefetch;
    EXPECT_EQ(take(o, 14), expected) << workers << " workers";
  }
}

TEST(Batches, SeekGivesWhatComesThereInOrder) {
  const std::vector<Got> all = take(options(), 14);
  Loaded loaded(options());
  ASSERT_EQ(loaded.batches.batches_per_epoch(), 6);
  for (const int at : {13, 0, 7, 6, 5}) {
    loaded.batches.seek(at / 6, at % 6);
    EXPECT_EQ(loaded.next(), all[at]);
    if (at < 13) {
      EXPECT_EQ(loaded.next(), all[at + 1]);
    }
  }
  EXPECT_THROW(loaded.batches.seek(0, 6), Error);
  EXPECT_THROW(loaded.batches.seek(-1, 0), Error);
}

TEST(Batches, AnotherSeedGivesOtherBatches) {
  ImageLoaderOptions o = options();
  const Got first = take(o, 1)[0];
  o.seed = 4;
  EXPECT_NE(take(o, 1)[0], first);
}

TEST(Batches, ThePartsOfAllProcessesJoinedAreTheBatchOfOne) {
  for (const bool train : {true, false}) {
    ImageLoaderOptions o = options();
    o.train = train;
    const std::vector<Got> expected = take(o, 9);
    for (const int world : {2, 3, 8}) {
      std::vector<Got> joined(9);
      for (int rank = 0; rank < world; ++rank) {
        o.share = {.rank = rank, .world = world};
        const std::vector<Got> part = take(o, 9);
        for (std::size_t i = 0; i < joined.size(); ++i) {
          joined[i].images.insert(joined[i].images.end(), part[i].images.begin(),
                                  part[i].images.end());
          joined[i].targets.insert(joined[i].targets.end(), part[i].targets.begin(),
                                   part[i].targets.end());
        }
      }
      EXPECT_EQ(joined, expected) << world << " processes";
    }
  }
}

TEST(Batches, EvaluationShowsEverySampleOnceInOrder) {
  ImageLoaderOptions o = options();
  o.train = false;
  Loaded loaded(o);
  ASSERT_EQ(loaded.batches.batches_per_epoch(), 7);
  std::vector<std::int64_t> targets;
  for (int i = 0; i < 7; ++i) {
    const Got got = loaded.next();
    EXPECT_EQ(got.targets.size(), i < 6 ? 8U : 2U);
    targets.insert(targets.end(), got.targets.begin(), got.targets.end());
  }
  ASSERT_EQ(targets.size(), 50U);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(targets[i], loaded.batches.set().target(i));
}

TEST(Samplers, AnEpochIsAPermutationAndEachIsAnother) {
  Sampler sampler({.size = 50, .batch = 5, .seed = 1});
  std::vector<std::vector<std::int64_t>> orders(2);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int b = 0; b < 10; ++b) {
      for (const auto& sample : sampler.batch(epoch, b)) orders[epoch].push_back(sample.index);
    }
    EXPECT_EQ(std::set(orders[epoch].begin(), orders[epoch].end()).size(), 50U);
  }
  EXPECT_NE(orders[0], orders[1]);
}

// DeiT's RASampler: each sample three times in a row, an epoch of floor(n / 256) 256 of them.
TEST(Samplers, RepeatedAugmentation) {
  Sampler sampler({.size = 1000, .batch = 96, .seed = 1, .repeats = 3});
  EXPECT_EQ(sampler.batches(), 768 / 96);
  std::map<std::int64_t, int> counts;
  std::set<std::int64_t> positions;
  for (int b = 0; b < sampler.batches(); ++b) {
    for (const auto& sample : sampler.batch(0, b)) {
      ++counts[sample.index];
      positions.insert(sample.position);
    }
  }
  EXPECT_EQ(counts.size(), 256U);
  for (const auto& [index, count] : counts) EXPECT_EQ(count, 3) << index;
  EXPECT_EQ(positions.size(), 768U);  // each repeat has random numbers of its own
}

TEST(Samplers, WrongOptionsAreRefused) {
  EXPECT_THROW(Sampler({.size = 0}), Error);
  EXPECT_THROW(Sampler({.size = 5, .batch = 0}), Error);
  EXPECT_THROW(Sampler({.size = 5, .batch = 6}), Error);
  EXPECT_EQ(Sampler({.size = 5, .batch = 6, .drop_last = false}).batches(), 1);
  EXPECT_THROW(Sampler({.size = 5, .batch = 1, .repeats = 0}), Error);
  EXPECT_THROW(Sampler({.size = 5, .batch = 1, .share = {.rank = 2, .world = 2}}), Error);
}

class BrokenFiles : public mhla::test::IoTest {
 protected:
  void SetUp() override {
    IoTest::SetUp();
    for (int i = 0; i < 12; ++i) {
      const std::string folder = path(i % 2 ? "b" : "a");
      std::filesystem::create_directories(folder);
      const auto value = static_cast<std::uint8_t>(20 * i);
      mhla::io::write_image(folder + "/" + std::to_string(10 + i) + ".png",
                            mhla::io::Image(20, 20, value, value, value).view());
    }
    write("a/14.png", "no picture");
  }
  ImageLoaderOptions from_folder(bool train) const {
    ImageLoaderOptions o = options(0, 4);
    o.source.path = folder_;
    o.train = train;
    return o;
  }
};

TEST_F(BrokenFiles, StopTheLoaderWithTheirName) {
  for (const int workers : {0, 3}) {
    ImageLoaderOptions o = from_folder(false);
    o.workers = workers;
    Loaded loaded(o);
    try {
      loaded.next();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("a/14.png"), std::string::npos) << error.what();
    }
    EXPECT_EQ(loaded.next().targets.size(), 4U);  // the next batch is there all the same
  }
}

TEST_F(BrokenFiles, AreLeftOutOfAnEvaluation) {
  ImageLoaderOptions o = from_folder(false);
  o.on_error = mhla::data::OnError::skip;
  std::vector<std::string> told;
  o.on_skip = [&](const std::string& what) { told.push_back(what); };
  Loaded loaded(o);
  const Got first = loaded.next();
  EXPECT_EQ(first.targets, (std::vector<std::int64_t>{0, 0, 0}));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(loaded.next().targets.size(), 4U);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("a/14.png"), std::string::npos);
  // What follows has moved up: a/16.png is grey of value 120.
  EXPECT_FLOAT_EQ(first.images[2 * kEach], (120 / 255.0F - 0.485F) / 0.229F);
}

TEST_F(BrokenFiles, AreReplacedInTraining) {
  ImageLoaderOptions o = from_folder(true);
  o.on_error = mhla::data::OnError::skip;
  int told = 0;
  o.on_skip = [&](const std::string&) { ++told; };
  const std::vector<Got> got = take(o, 3);
  for (const Got& each : got) EXPECT_EQ(each.targets.size(), 4U);
  EXPECT_EQ(told, 1);
  o.workers = 0;
  EXPECT_EQ(take(o, 3), got);
}

TEST_F(BrokenFiles, ASetWithoutAnyReadablePictureStopsEvenWhenSkipping) {
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
    if (!file.is_directory()) std::ofstream(file.path()) << "broken";
  }
  ImageLoaderOptions o = from_folder(true);
  o.on_error = mhla::data::OnError::skip;
  o.on_skip = [](const std::string&) {};
  Loaded loaded(o);
  EXPECT_THROW(loaded.next(), Error);
}

TEST(Batches, WrongOptionsAreRefused) {
  const auto refused = [](auto change) {
    ImageLoaderOptions o = options();
    change(o);
    EXPECT_THROW(Loaded{o}, Error);
  };
  refused([](auto& o) { o.workers = -2; });
  refused([](auto& o) { o.prefetch = 0; });
  refused([](auto& o) { o.repeats = 3, o.train = false; });
  refused([](auto& o) { o.augmentation.pad_crop = 4; });  // beside the random crop
  refused([](auto& o) { o.augmentation.flip = 2; });
  refused([](auto& o) { o.augmentation.colour_jitter.emplace(); });
  refused([](auto& o) { o.normalisation.deviation[1] = 0; });
  refused([](auto& o) { o.source.path = "/nowhere"; });
}

}  // namespace
