// The operations of a stream in plain C++: for f64, and where no SIMD kernels are compiled.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mhla/core/half.h"
#include "mhla/core/state_host.h"

namespace mhla::streaming {

template <typename Number>
struct ScalarOps {
  using T = Number;
  using Int = std::int64_t;

  static T feature(FeatureMap map, T x) {
    switch (map) {
      case FeatureMap::relu_eps: return std::max(x, T(0)) + T(kReluEps);
      case FeatureMap::relu: return std::max(x, T(0));
      case FeatureMap::elu1: return x > T(0) ? x + T(1) : std::exp(x);
      case FeatureMap::identity: return x;
    }
    fail(ErrorCode::internal, "state", "feature map outside the enumeration");
  }
  // `count` numbers, mapped; zeros up to a whole vector.
  static void load(const void* from, DType dtype, Int count, FeatureMap map, T* row) {
    with_dtype(dtype, [&](auto tag) {
      const auto* source = static_cast<const decltype(tag)*>(from);
      for (Int i = 0; i < count; ++i) row[i] = feature(map, static_cast<T>(to_float(source[i])));
    });
    std::fill(row + count, row + (count + 15) / 16 * 16, T(0));
  }
  // Zeros where the divisor is zero.
  static void store(const T* row, T scale, T divisor, Int count, DType dtype, void* to) {
    with_dtype(dtype, [&](auto tag) {
      auto* target = static_cast<decltype(tag)*>(to);
      for (Int i = 0; i < count; ++i) {
        target[i] = from_float<decltype(tag)>(divisor == T(0) ? T(0) : scale * row[i] / divisor);
      }
    });
  }
  static T dot(const T* a, const T* b, Int count) {
    T sum = 0;
    for (Int i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }
  static void add_scaled(T weight, const T* x, T* sum, Int count) {
    for (Int i = 0; i < count; ++i) sum[i] += weight * x[i];
  }
  static void row_times_matrix(const T* q, const T* matrix, Int rows, Int columns, T* out) {
    std::fill_n(out, columns, T(0));
    for (Int c = 0; c < rows; ++c) add_scaled(q[c], matrix + c * columns, out, columns);
  }
  // S += sum of k v^T over a few tokens and columns, R += own times that.
  static void fold(const T* const* keys, const T* const* values, Int tokens, Int rows, Int columns,
                   Int stride, T own, T* s, T* r) {
    for (Int c = 0; c < rows; ++c) {
      for (Int i = 0; i < columns; ++i) {
        T sum = 0;
        for (Int u = 0; u < tokens; ++u) sum += keys[u][c] * values[u][i];
        s[c * stride + i] += sum;
        if (r) r[c * stride + i] += own * sum;
      }
    }
  }
  static void product(const Product<T>& p) {
    for (Int m = 0; m < p.rows; ++m) {
      T* c = p.c + m * p.ldc;
      if (p.also) {
        for (Int n = 0; n < p.columns; ++n) {
          T sum = 0;
          for (Int k = 0; k < p.depth; ++k) {
            sum += p.a[m * p.a_row + k * p.a_column] * p.b[k * p.ldb + n];
          }
          c[n] += sum;
          p.also[m * p.ldc + n] += p.also_weight * sum;
        }
        continue;
      }
      if (!p.add) std::fill_n(c, p.columns, T(0));
      const Int depth = p.triangle ? std::min(p.depth, m + 1) : p.depth;
      for (Int k = 0; k < depth; ++k) {
        add_scaled(p.a[m * p.a_row + k * p.a_column], p.b + k * p.ldb, c, p.columns);
      }
    }
  }
  static void mix(const MixPart<T>& part) {
    for (Int r = 0; r < part.rows; ++r) {
      T* to = part.to[r] + part.offset;
      if (!part.add) std::fill_n(to, part.count, T(0));
      for (Int s = 0; s < part.sources; ++s) {
        add_scaled(part.weights[r * part.stride + s],
                   static_cast<const T*>(part.from[s]) + part.offset, to, part.count);
      }
    }
  }
  static int threads(Int, Int) { return 1; }
  template <typename F>
  static void each(int, const Units& units, F&& f) {
    for (Int i = 0; i < units.count; ++i) f(i, 0);
  }
};

}  // namespace mhla::streaming
