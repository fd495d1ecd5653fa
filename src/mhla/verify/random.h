// Numbers that are the same on every machine and standard library.
#pragma once

#include <cstdint>
#include <string_view>

namespace mhla::verify {

// FNV-1a: a case's seed follows from its name.
inline std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53);
  }
  // 0 <= result < count
  std::uint64_t below(std::uint64_t count) { return bits() % count; }

 private:
  std::uint64_t state_;
};

}  // namespace mhla::verify
