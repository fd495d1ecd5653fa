// Size arithmetic that reports overflow instead of wrapping around.
#pragma once

#include <cstdint>

#include "mhla/error.h"

namespace mhla {

inline std::int64_t checked_mul(const char* where, std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(where, "size overflow: ", a, " * ", b, " does not fit 64 bits");
  }
  return product;
}

inline std::int64_t checked_add(const char* where, std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(where, "size overflow: ", a, " + ", b, " does not fit 64 bits");
  }
  return sum;
}

}  // namespace mhla
