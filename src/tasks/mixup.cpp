#include "tasks/mixup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace mhla::tasks {
namespace {

double beta(double alpha, std::mt19937_64& random) {
  std::gamma_distribution<double> gamma(alpha, 1.0);
  const double a = gamma(random), b = gamma(random);
  return a + b > 0 ? a / (a + b) : 0.5;
}

}  // namespace

Mix draw_mix(const MixupOptions& options, std::int64_t height, std::int64_t width,
             std::uint64_t seed, std::uint64_t step, std::uint64_t part) {
  std::seed_seq words{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
                      static_cast<std::uint32_t>(part)};
  std::mt19937_64 random(words);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  Mix mix;
  if (!options.on() || uniform(random) >= options.probability) return mix;
  mix.box = options.cutmix > 0 &&
            (options.mixup <= 0 || uniform(random) < options.switch_to_cutmix);
  mix.lambda = beta(mix.box ? options.cutmix : options.mixup, random);
  if (!mix.box) return mix;
  const double side = std::sqrt(1.0 - mix.lambda);
  const auto rows = static_cast<std::int64_t>(static_cast<double>(height) * side);
  const auto columns = static_cast<std::int64_t>(static_cast<double>(width) * side);
  const auto y = std::uniform_int_distribution<std::int64_t>(0, height - 1)(random);
  const auto x = std::uniform_int_distribution<std::int64_t>(0, width - 1)(random);
  mix.top = std::clamp<std::int64_t>(y - rows / 2, 0, height);
  mix.bottom = std::clamp<std::int64_t>(y + rows / 2, 0, height);
  mix.left = std::clamp<std::int64_t>(x - columns / 2, 0, width);
  mix.right = std::clamp<std::int64_t>(x + columns / 2, 0, width);
  const auto area = static_cast<double>((mix.bottom - mix.top) * (mix.right - mix.left));
  mix.lambda = 1.0 - area / static_cast<double>(height * width);
  return mix;
}

std::pair<at::Tensor, at::Tensor> mixed(const Mix& mix, const at::Tensor& image,
                                        const at::Tensor& target, std::int64_t classes,
                                        double smoothing) {
  const double off = smoothing / static_cast<double>(classes), on = 1.0 - smoothing + off;
  at::Tensor own = at::full({target.size(0), classes}, off, image.options().dtype(at::kFloat));
  own.scatter_(1, target.unsqueeze(1), on);
  if (mix.lambda == 1.0) return {image, own};
  const at::Tensor soft = own * mix.lambda + own.flip(0) * (1.0 - mix.lambda);
  if (!mix.box) return {image * mix.lambda + image.flip(0) * (1.0 - mix.lambda), soft};
  at::Tensor result = image.clone();
  const auto cut = [&](const at::Tensor& x) {
    return x.slice(2, mix.top, mix.bottom).slice(3, mix.left, mix.right);
  };
  cut(result).copy_(cut(image).flip(0));
  return {result, soft};
}

}  // namespace mhla::tasks
