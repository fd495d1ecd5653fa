// Random numbers that depend on what they are for alone: a seed and up to three counters name a
// stream, so no order of threads can change what a sample gets.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace mhla::data {

class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t a = 0, std::uint64_t b = 0,
                  std::uint64_t c = 0) {
    for (const std::uint64_t word : {seed, a, b, c}) {
      state_ ^= word;
      state_ = bits();
    }
  }

  // splitmix64 (Steele, Lea, Flood 2014).
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // in [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  bool chance(double probability) { return uniform() < probability; }
  // 0 <= result < count; count is far below 2^32, so the bias of the product is nothing.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>((bits() >> 32) * static_cast<std::uint64_t>(count) >> 32);
  }
  double normal() {  // Box and Muller, both halves used
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::uint64_t state_ = 0;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace mhla::data
