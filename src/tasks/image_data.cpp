#include "tasks/image_data.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>
#include <limits>

#include "data/image_loader.h"
#include "io/image.h"
#include "mhla/error.h"

namespace mhla::tasks {
namespace {

int small(const char* key, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  fail("config", "data.", key, ": expected at least ", least, ", got ", value);
}

// What a preset says can be changed key by key; the keys of the others stand at "off".
data::Augmentation augmentation_from(io::ConfigSection& section, int image_size) {
  std::string preset = "recipe";
  section("augmentation", preset, {"recipe", "light", "none"});
  data::Augmentation result = preset == "recipe"  ? data::Augmentation::recipe()
                              : preset == "light" ? data::Augmentation::light(image_size)
                                                  : data::Augmentation::none();
  section("flip", result.flip);
  std::int64_t pad_crop = result.pad_crop;
  section("pad_crop", pad_crop);
  result.pad_crop = small("pad_crop", pad_crop, 0);
  std::vector<double> scale;
  if (result.random_crop) scale = {result.random_crop->smallest, result.random_crop->largest};
  section("crop_scale", scale);
  if (scale.size() == 2) {
    data::CropRange range = result.random_crop.value_or(data::CropRange{});
    range.smallest = scale[0], range.largest = scale[1];
    result.random_crop = range;
  } else if (scale.empty()) {
    result.random_crop.reset();
  } else {
    fail("config", "data.crop_scale: expected [smallest, largest] or [], got ", scale.size(),
         " numbers");
  }
  std::string rand_augment = result.rand_augment ? "rand-m9-mstd0.5-inc1" : "off";
  section("rand_augment", rand_augment);
  result.rand_augment.reset();
  if (rand_augment != "off") result.rand_augment = data::parse_rand_augment(rand_augment);
  double jitter = 0, erasing = result.erasing ? result.erasing->probability : 0;
  section("colour_jitter", jitter);
  if (jitter < 0) fail("config", "data.colour_jitter: expected at least 0, got ", jitter);
  if (jitter > 0) result.colour_jitter = data::ColourJitter{jitter, jitter, jitter};
  section("erasing", erasing);
  result.erasing.reset();
  if (erasing != 0) result.erasing = data::Erasing{.probability = erasing};
  std::string filter = "random";
  section("filter", filter, {"random", "bilinear", "bicubic"});
  if (filter != "random") result.filter = io::parse_filter(filter);
  return result;
}

void read_three(io::ConfigSection& section, const char* key, std::array<float, 3>& values) {
  std::vector<double> three;
  // In f32's own digits: 0.485, not 0.48500001430511475.
  for (const float value : values)
    three.push_back(std::round(static_cast<double>(value) * 1e6) / 1e6);
  section(key, three);
  if (three.size() != 3) fail("config", "data.", key, ": expected 3 numbers, got ", three.size());
  for (std::size_t i = 0; i < 3; ++i) values[i] = static_cast<float>(three[i]);
}

}  // namespace

ImageData::ImageData(io::Config& config) {
  io::ConfigSection section(config, "data");
  section("path", options_.source.path);
  std::int64_t size = options_.image_size, workers = -1, prefetch = 4, repeats = 1;
  section("image_size", size);
  options_.image_size = small("image_size", size, 1);
  section("train_samples", train_samples_);
  section("test_samples", test_samples_);
  for (const auto& [key, samples] :
       {std::pair("train_samples", train_samples_), std::pair("test_samples", test_samples_)}) {
    if (samples < 0) fail("config", "data.", key, ": expected at least 0, got ", samples);
  }
  section("workers", workers);
  options_.workers = small("workers", workers, -1);
  section("prefetch", prefetch);
  options_.prefetch = small("prefetch", prefetch, 1);
  section("repeats", repeats);
  options_.repeats = small("repeats", repeats, 1);
  section("crop_part", options_.crop_part);
  section("cache_bytes", options_.source.cache_bytes);
  std::string on_error = "stop";
  section("on_error", on_error, {"stop", "skip"});
  options_.on_error = on_error == "stop" ? data::OnError::stop : data::OnError::skip;
  read_three(section, "mean", options_.normalisation.mean);
  read_three(section, "deviation", options_.normalisation.deviation);
  options_.augmentation = augmentation_from(section, options_.image_size);
  data::check(options_.augmentation, options_.image_size);
}

std::unique_ptr<data::Loader> ImageData::loader(const LoaderRequest& request) {
  data::ImageLoaderOptions options = options_;
  options.train = request.split == Split::train;
  options.source.split = options.train ? "train" : "val";
  options.source.samples = options.train ? train_samples_ : test_samples_;
  options.batch = request.batch;
  options.seed = request.seed;
  options.share = request.share;
  if (!options.train) options.repeats = 1;
  std::unique_ptr<data::ImageLoader> loader = data::make_image_loader(options);
  names_ = loader->classes();
  return loader;
}

std::string ImageData::png(const at::Tensor& image) const {
  const auto three = [](const std::array<float, 3>& values) {
    return at::tensor(at::ArrayRef<float>(values.data(), values.size())).view({3, 1, 1});
  };
  const data::Normalisation& normal = options_.normalisation;
  const at::Tensor bytes = (image.detach().to(at::kCPU, at::kFloat) * three(normal.deviation) +
                            three(normal.mean))
                               .mul(255)
                               .round()
                               .clamp(0, 255)
                               .to(at::kByte)
                               .permute({1, 2, 0})
                               .contiguous();
  const auto width = static_cast<int>(bytes.size(1));
  return io::encode_png({.pixels = bytes.const_data_ptr<std::uint8_t>(),
                         .width = width,
                         .height = static_cast<int>(bytes.size(0)),
                         .stride = std::ptrdiff_t{3} * width});
}

}  // namespace mhla::tasks
