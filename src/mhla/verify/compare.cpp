// Errors, tolerances and their ratio.
#include "mhla/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/verify/rounding.h"

namespace mhla::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// See compare.h; an ulp is two unit roundoffs.
constexpr double kMassFactor = 2;
constexpr double kNaiveFactor = 2;
constexpr double kFloorOfLargest = 2, kFloorOfRms = 1;

// Below the smallest normal number relative precision ends.
double smallest_normal(DType dtype) {
  if (dtype == DType::f64) return 0x1p-1022;
  return dtype == DType::f16 ? 0x1p-14 : 0x1p-126;
}

struct Norms {
  double largest = 0, rms = 0;
};

Norms norms(const std::vector<double>& a, const std::vector<double>* minus = nullptr) {
  Norms result;
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = minus ? a[i] - (*minus)[i] : a[i];
    if (!std::isfinite(x)) return {kInfinity, kInfinity};
    result.largest = std::max(result.largest, std::abs(x));
    squares += x * x;
  }
  if (!a.empty()) result.rms = std::sqrt(squares / static_cast<double>(a.size()));
  return result;
}

Agreement agreement(double error, double tolerance, double scale) {
  const double unit = scale > 0 ? scale : 1;
  const double ratio = error == 0 ? 0 : error / tolerance;
  return {error / unit, tolerance / unit, std::isnan(ratio) ? kInfinity : ratio};
}

const Agreement& worse(const Agreement& a, const Agreement& b) { return b.ratio > a.ratio ? b : a; }

Agreement compare_elements(const std::vector<double>& got, const Expected& e) {
  const double u = e.roundoff > 0 ? e.roundoff : unit_roundoff(e.dtype);
  const double u_stored = unit_roundoff(e.stored);
  Agreement worst;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double storage = u_stored * std::abs(e.value[i]);
    const double tolerance = kMassFactor * u * e.mass[i] + smallest_normal(e.stored) +
                             (u_stored > u ? 0 : storage);
    double error = std::isfinite(got[i]) ? std::abs(got[i] - e.value[i]) : kInfinity;
    if (u_stored > u) error = std::max(0.0, error - storage);
    const Agreement here = agreement(error, tolerance, std::abs(e.value[i]));
    if (i == 0 || here.ratio > worst.ratio) worst = here;
  }
  return worst;
}

}  // namespace

Agreement compare(const std::vector<double>& got, const Expected& e) {
  if (got.size() != e.value.size()) return {kInfinity, 0, kInfinity};
  const Norms size = norms(e.value), error = norms(got, &e.value);
  const Norms naive = e.naive ? norms(*e.naive, &e.value) : Norms{kInfinity, 0};
  // A naive computation that overflows is no yardstick.
  if (!std::isfinite(naive.largest)) return compare_elements(got, e);
  const double u = unit_roundoff(e.dtype), tiny = smallest_normal(e.stored);
  const double largest = std::max(kNaiveFactor * naive.largest,
                                  kFloorOfLargest * u * size.largest) +
                         tiny;
  const double rms = std::max(kNaiveFactor * naive.rms, kFloorOfRms * u * size.rms) + tiny;
  return worse(agreement(error.largest, largest, size.largest),
               agreement(error.rms, rms, size.rms));
}

}  // namespace mhla::verify
