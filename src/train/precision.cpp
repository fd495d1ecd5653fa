#include "train/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <mutex>

#include "mhla/error.h"

namespace mhla::train {
namespace {

// As torch.amp.GradScaler.
constexpr double kGrowth = 2.0, kBackoff = 0.5;
constexpr std::int64_t kGrowthInterval = 2000;

// Neighbouring steps and parts get unlike seeds (splitmix64).
std::uint64_t scrambled(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

c10::Device device_of(const std::string& name) {
  if (name == "auto") return at::hasCUDA() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  try {
    c10::Device device(name);
    if (device.is_cuda() && !at::hasCUDA()) {
      fail(ErrorCode::unsupported, "train", "train.device: '", name, "', but there is no GPU here");
    }
    if (device.is_cuda() && !device.has_index()) return {c10::kCUDA, 0};
    if (device.is_cuda() || device.is_cpu()) return device;
  } catch (const c10::Error&) {
  }
  fail("train", "train.device: expected auto, cpu, cuda or cuda:N, got '", name, "'");
}

void set_precision(const TrainOptions& options) {
  at::Context& context = at::globalContext();
  context.setFloat32MatmulPrecision(options.tf32 ? "high" : "highest");
  context.setAllowTF32CuDNN(options.tf32);
  context.setBenchmarkCuDNN(!options.deterministic);
  if (!options.deterministic) return;
  // NOTE: cuBLAS reads it when it is used first; without it, its results may differ from run to
  // run.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  context.setDeterministicCuDNN(true);
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
}

void seed_step(c10::Device device, std::uint64_t seed, std::uint64_t step, std::uint64_t part) {
  const std::uint64_t mixed = scrambled(scrambled(scrambled(seed) + step) + part);
  const auto reseed = [&](c10::Device each) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(mixed);
  };
  reseed(c10::kCPU);
  if (!device.is_cpu()) reseed(device);
}

Autocast::Autocast(c10::Device device, const std::string& precision)
    : type_(device.type()), on_(precision == "bf16" || precision == "f16") {
  if (!on_) return;
  was_on_ = at::autocast::is_autocast_enabled(type_);
  at::autocast::set_autocast_dtype(type_, precision == "bf16" ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!on_) return;
  // The cache holds weights rounded once a step; they change after it.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_on_);
}

LossScale::LossScale(bool on, double start, c10::Device device) {
  if (!on) return;
  const auto options = at::TensorOptions().device(device);
  scale_ = at::full({}, start, options.dtype(at::kFloat));
  growth_ = at::zeros({}, options.dtype(at::kInt));
  found_inf_ = at::zeros({}, options.dtype(at::kFloat));
}

at::Tensor LossScale::scaled(const at::Tensor& loss) const {
  return scale_.defined() ? loss * scale_ : loss;
}

at::Tensor LossScale::unscale(const std::vector<at::Tensor>& gradients) {
  if (!scale_.defined()) return {};
  found_inf_.zero_();
  if (!gradients.empty()) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, scale_.reciprocal());
  }
  return found_inf_;
}

void LossScale::update() {
  if (!scale_.defined()) return;
  at::_amp_update_scale_(scale_, growth_, found_inf_, kGrowth, kBackoff, kGrowthInterval);
}

io::StateDict LossScale::state() const {
  if (!scale_.defined()) return {};
  return {{"loss_scale", scale_}, {"loss_scale.growth", growth_}};
}

}  // namespace mhla::train
