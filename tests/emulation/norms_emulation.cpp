// Norms and what stands around them on the emulated machine against the same steps in f64.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "mhla/norms.h"
#include "numbers.h"

namespace {

using namespace mhla;

std::mt19937_64 random_bits(5);
int failures = 0;

struct Numbers : emulator::Numbers {
  Numbers(DType dtype, std::int64_t count)
      : emulator::Numbers(random_bits, dtype, count, 1.f, /*mean=*/0.25f) {}
};

struct Steps {
  bool branch, gate, affine, modulation, then, rms;
};

// Relative to the norm of what is wanted.
double difference(Numbers& got, const std::vector<double>& wanted) {
  double off = 0, size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    off += (got.result(i) - wanted[i]) * (got.result(i) - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return std::isnan(off) ? std::numeric_limits<double>::infinity() : std::sqrt(off / size);
}

void check(DType type_x, DType type, std::int64_t b, std::int64_t n, std::int64_t c,
           const Steps& steps) {
  Numbers x(type_x, b * n * c), branch(type, b * n * c), gate(type, b * c), scale(type, b * c);
  Numbers shift(type, b * c), weight(DType::f32, c), bias(DType::f32, c);
  Numbers then_weight(type, c), then_bias(type, c);
  Numbers sum(type_x, b * n * c), out(type, b * n * c);

  // Of the sum as it is stored: the kernel's own is taken, after it was compared.
  sum.forget(), out.forget();
  RowNorm call{.x = x.on_device({b, n, c}), .out = out.on_device({b, n, c}), .rms = steps.rms};
  if (steps.branch) call.branch = branch.on_device({b, n, c}), call.sum = sum.on_device({b, n, c});
  if (steps.gate) call.gate = gate.on_device({b, c});
  if (steps.affine) call.weight = weight.on_device({c}), call.bias = bias.on_device({c});
  if (steps.modulation) call.scale = scale.on_device({b, c}), call.shift = shift.on_device({b, c});
  if (steps.then)
    call.then_weight = then_weight.on_device({c}), call.then_bias = then_bias.on_device({c});
  row_norm(call, nullptr);

  const double unit = type == DType::f32 ? 0x1p-22 : type == DType::bf16 ? 0x1p-8 : 0x1p-11;
  double off = 0;
  if (steps.branch) {
    std::vector<double> wanted = x.exact;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const std::size_t of_sample = i / static_cast<std::size_t>(n * c) *
                                    static_cast<std::size_t>(c);
      const double g = steps.gate ? gate.exact[of_sample + i % static_cast<std::size_t>(c)] : 1.0;
      wanted[i] += g * branch.exact[i];
    }
    off = difference(sum, wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) x.exact[i] = sum.result(i);
  }
  std::vector<double> wanted = x.exact;
  const auto width = static_cast<std::size_t>(c);
  const auto norm = [&](double* row, bool rms, double eps) {
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < width && !rms; ++i) mean += row[i] / static_cast<double>(c);
    for (std::size_t i = 0; i < width; ++i) squares += (row[i] - mean) * (row[i] - mean);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(c) + eps);
    for (std::size_t i = 0; i < width; ++i) row[i] = (row[i] - mean) * factor;
  };
  for (std::size_t r = 0; r < static_cast<std::size_t>(b * n); ++r) {
    double* row = wanted.data() + r * width;
    const std::size_t sample = r / static_cast<std::size_t>(n) * width;
    norm(row, steps.rms, call.eps);
    for (std::size_t i = 0; i < width; ++i) {
      if (steps.affine) row[i] = row[i] * weight.exact[i] + bias.exact[i];
      if (steps.modulation)
        row[i] = row[i] * (1 + scale.exact[sample + i]) + shift.exact[sample + i];
    }
    if (!steps.then) continue;
    norm(row, false, call.then_eps);
    for (std::size_t i = 0; i < width; ++i)
      row[i] = row[i] * then_weight.exact[i] + then_bias.exact[i];
  }
  off = std::max(off, difference(out, wanted));
  const bool right = off < unit;
  failures += !right;
  std::printf("%s rows %s, %lld x %lld of %lld%s%s%s%s%s%s: off by %.2e of the norm%s\n",
              std::string(name(type_x)).c_str(), std::string(name(type)).c_str(),
              static_cast<long long>(b), static_cast<long long>(n), static_cast<long long>(c),
              steps.branch ? " branch" : "", steps.gate ? " gate" : "",
              steps.affine ? " affine" : "", steps.modulation ? " modulation" : "",
              steps.then ? " then" : "", steps.rms ? " rms" : "", off, right ? "" : ": WRONG");
  std::fflush(stdout);
}

}  // namespace

int main() {
  const Steps all{.branch = true, .gate = true, .affine = true, .modulation = true, .then = true};
  const Steps few{.rms = true};
  const Steps dit{.branch = true, .gate = true, .modulation = true, .then = true};
  // One to eight pieces a lane, rows with and without idle lanes, and thread blocks that are not
  // full at the end.
  for (const std::int64_t c : {8, 24, 64, 192, 384, 512, 1152, 1536, 2048}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      check(type, type, 3, 211, c, dit);
    }
    check(DType::f32, DType::f16, 2, 101, c, all);
    check(DType::bf16, DType::bf16, 1, 333, c, few);
    check(DType::bf16, DType::bf16, 2, 1, c, {.branch = true});
  }
  std::printf(failures ? "%d results are wrong\n" : "all results are right\n", failures);
  return failures != 0;
}
