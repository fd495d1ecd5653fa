// Numerical rank by Gaussian elimination with full pivoting.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace mhla::test {

// Pivots below n * eps32 * the first pivot count as zero (spec section 5).
inline int matrix_rank(std::vector<double> a, std::int64_t n) {
  double first_pivot = 0;
  for (std::int64_t step = 0; step < n; ++step) {
    std::int64_t row = step, col = step;
    for (std::int64_t i = step; i < n; ++i) {
      for (std::int64_t j = step; j < n; ++j) {
        if (std::abs(a[i * n + j]) > std::abs(a[row * n + col])) row = i, col = j;
      }
    }
    const double pivot = a[row * n + col];
    if (step == 0) first_pivot = std::abs(pivot);
    if (std::abs(pivot) <= first_pivot * static_cast<double>(n) * 1.2e-7) {
      return static_cast<int>(step);
    }
    for (std::int64_t j = 0; j < n; ++j) std::swap(a[row * n + j], a[step * n + j]);
    for (std::int64_t i = 0; i < n; ++i) std::swap(a[i * n + col], a[i * n + step]);
    for (std::int64_t i = step + 1; i < n; ++i) {
      const double factor = a[i * n + step] / a[step * n + step];
      for (std::int64_t j = step; j < n; ++j) a[i * n + j] -= factor * a[step * n + j];
    }
  }
  return static_cast<int>(n);
}

}  // namespace mhla::test
