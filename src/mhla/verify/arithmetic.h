// Three kinds of number the dense formula is computed in: exact enough to be the truth while
// tracking how much rounding it can suffer, and the two low-precision storage types.
#pragma once

#include <cmath>

#include "mhla/verify/rounding.h"

namespace mhla::verify {

// An f64 value and the mass of its rounding errors (see DenseAnswer).
struct Tracked {
  double value = 0, mass = 0;

  static Tracked input(double x) { return {x, 0}; }
  static Tracked computed(double x, double roundings) { return {x, roundings * std::abs(x)}; }
  double number() const { return value; }
};
inline Tracked operator*(Tracked a, Tracked b) {
  const double product = a.value * b.value;
  const double mass = std::abs(a.value) * b.mass + std::abs(b.value) * a.mass + std::abs(product);
  return {product, mass};
}
inline Tracked operator/(Tracked a, Tracked b) {
  const double quotient = a.value / b.value;
  const double mass = (a.mass + std::abs(quotient) * b.mass) / std::abs(b.value);
  return {quotient, mass + std::abs(quotient)};
}
inline Tracked operator-(Tracked a) { return {-a.value, a.mass}; }
inline Tracked stored(Tracked a) { return a; }

template <DType dtype>
struct Low {
  float value = 0;

  static Low input(double x) { return {static_cast<float>(x)}; }
  static Low computed(double x, double) { return {static_cast<float>(x)}; }
  double number() const { return value; }
};
template <DType dtype>
Low<dtype> operator*(Low<dtype> a, Low<dtype> b) {
  return {a.value * b.value};
}
template <DType dtype>
Low<dtype> operator/(Low<dtype> a, Low<dtype> b) {
  return {a.value / b.value};
}
template <DType dtype>
Low<dtype> operator-(Low<dtype> a) {
  return {-a.value};
}
// What a tensor of this dtype keeps of a value.
template <DType dtype>
Low<dtype> stored(Low<dtype> a) {
  return {static_cast<float>(round_to(dtype, a.value))};
}

template <typename Number>
struct Sum {
  float total = 0;
  void add(Number term) { total += term.value; }
  Number result() const { return {total}; }
};
template <>
struct Sum<Tracked> {
  double total = 0, size = 0, mass = 0, count = 0;
  void add(Tracked term) {
    total += term.value;
    size += std::abs(term.value);
    mass += term.mass;
    count += 1;
  }
  Tracked result() const { return {total, mass + std::sqrt(count) * size}; }
};

}  // namespace mhla::verify
