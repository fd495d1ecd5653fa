// The local term of cuda.dense on the emulated machine against the f64 reference.
//
//   emulate [PROBLEM...]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "mhla/mhla.h"
#include "numbers.h"

namespace {

using namespace mhla;

std::mt19937_64 random_bits(5);
int failures = 0;

struct Numbers : emulator::Numbers {
  Numbers(DType dtype, std::int64_t count, float scale)
      : emulator::Numbers(random_bits, dtype, count, scale) {}
};

// q, k and v are parts of one [B, N, 3, H, D].
TensorView part(void* data, DType dtype, Device device, const Problem& p, std::int64_t which) {
  const std::int64_t n = p.layout.tokens(), h = p.heads, d = p.dk;
  auto* base = static_cast<unsigned char*>(data) +
               static_cast<std::size_t>(which * h * d) * size_of(dtype);
  TensorView view = TensorView::contiguous(base, dtype, {p.batch, n, h, d}, device);
  view.strides = {n * 3 * h * d, 3 * h * d, d, 1};
  return view;
}

void check(const std::string& text, bool has_bias) {
  Problem problem = parse_problem(text);
  const std::int64_t b = problem.batch, n = problem.layout.tokens(), h = problem.heads;
  const std::int64_t d = problem.dk, m = problem.layout.mixing_size();
  Numbers qkv(problem.dtype, b * n * 3 * h * d, 1), o(problem.dtype, b * n * h * d, 1);
  Numbers weight(problem.dtype, h * d * 9, 0.5), bias(problem.dtype, h * d, 0.5);
  std::vector<float> mixing(static_cast<std::size_t>(m * m));
  std::uniform_real_distribution<float> uniform(0.05f, 1.f);
  for (float& x : mixing) x = uniform(random_bits);
  const auto inputs = [&](void* data, DType dtype, Device device) {
    return ForwardInputs{
        .q = part(data, dtype, device, problem, 0),
        .k = part(data, dtype, device, problem, 1),
        .v = part(data, dtype, device, problem, 2),
        .mixing = TensorView::contiguous(mixing.data(), DType::f32, {m, m}, device)};
  };

  problem.dtype = DType::f64;
  std::vector<double> wanted(o.exact.size());
  ForwardInputs exact = inputs(qkv.exact.data(), DType::f64, Device::cpu());
  exact.local = {.weight = TensorView::of(weight.exact.data(), {h * d, 9}), .kernel = {1, 3, 3}};
  if (has_bias) exact.local.bias = TensorView::of(bias.exact.data(), {h * d});
  forward(plan(problem, {.implementation = "reference"}), exact,
          {.o = TensorView::of(wanted.data(), {b, n, h, d})});

  problem.dtype = qkv.dtype;
  problem.device = Device::cuda(0);
  const Plan fast = plan(problem, {.implementation = "cuda.dense"});
  std::printf("%s%s:", text.c_str(), has_bias ? " with bias" : "");
  if (!fast.adds_local({1, 3, 3})) {
    ++failures;
    std::printf(" does not add it\n");
    return;
  }
  ForwardInputs ours = inputs(qkv.raw.data(), qkv.dtype, Device::cuda(0));
  ours.local = {.weight = weight.on_device({h * d, 9}), .kernel = {1, 3, 3}};
  if (has_bias) ours.local.bias = bias.on_device({h * d});
  o.forget();
  std::vector<unsigned char> memory(fast.forward_workspace() + kWorkspaceAlignment);
  auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  address = (address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  forward(fast, ours, {.o = o.on_device({b, n, h, d})},
          {reinterpret_cast<void*>(address), fast.forward_workspace()});

  // Scores and the result are rounded once each, in bf16 under shared_position the local term, too;
  // everything else is f32.
  const double unit = qkv.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  double difference = 0, size = 0, worst = 0;
  for (const double x : wanted) size += x * x;
  const double typical = std::sqrt(size / static_cast<double>(wanted.size()));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double off = std::fabs(o.result(i) - wanted[i]);
    difference += off * off;
    worst = std::max(worst, std::isnan(off) ? std::numeric_limits<double>::infinity()
                                            : off / (typical + std::fabs(wanted[i])));
  }
  const double error = std::sqrt(difference / size);
  const bool right = error < unit && worst < 4 * unit;
  failures += !right;
  std::printf(" off by %.2e of the norm, %.2e at most%s\n", error, worst, right ? "" : ": WRONG");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> problems(argv + 1, argv + argc);
  if (problems.empty()) {
    problems = {
        "grid=16x16 block=4x4 batch=2 heads=3 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=16x16 block=4x4 batch=1 heads=1 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=16x16 block=4x4 heads=5 dk=64 dv=64 dtype=bf16",
        "grid=16x16 block=2x8 heads=4 dk=48 dv=48 dtype=bf16 normalizer=shared_position "
        "mask=block_causal feature_map=elu1",
        // Rings wrap, and taps change between heads.
        "grid=16x16 block=4x4 batch=3 heads=7 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        // Other arrangements of the blocks, and halves of heads.
        "grid=32x8 block=4x4 heads=3 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=4x64 block=4x4 heads=4 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=64x4 block=4x4 heads=3 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=8x32 block=2x8 heads=5 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=32x8 block=2x8 heads=3 dk=40 dv=40 dtype=bf16 normalizer=shared_position",
        "grid=4x64 block=1x16 heads=3 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=16x16 block=1x16 heads=5 dk=64 dv=64 dtype=bf16 normalizer=shared_position",
        "grid=4x64 block=1x16 heads=2 dk=40 dv=40 dtype=bf16 normalizer=none",
        "grid=8x32 block=4x4 heads=5 dk=64 dv=64 dtype=f16 normalizer=shared_position",
        "grid=8x32 block=2x8 heads=2 dk=64 dv=64 dtype=f16",
    };
  }
  for (std::size_t i = 0; i < problems.size(); ++i) check(problems[i], i % 2 == 0);
  std::printf(failures ? "%d results are wrong\n" : "all results are right\n", failures);
  return failures != 0;
}
