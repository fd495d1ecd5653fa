// Random streams and a dense f64 oracle with an error bound, shared by the tests of State.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "mhla/core/half.h"
#include "mhla/mixing.h"
#include "mhla/problem.h"
#include "mhla/state.h"

namespace mhla::test {

using Weight = std::function<double(std::int64_t i, std::int64_t b, std::int64_t head)>;

// q, k, v, q_den, k_den of n tokens, stored as E; row-major [B, N, H, D].
template <typename E>
struct StreamData {
  std::int64_t batch, tokens, heads, dk, dv;
  std::vector<E> q, k, v, q_den, k_den;

  StreamData(const Problem& p, std::int64_t n, unsigned seed)
      : batch(p.batch), tokens(n), heads(p.heads), dk(p.dk), dv(p.dv) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<E>& values, std::int64_t width) {
      values.resize(batch * tokens * heads * width);
      for (E& value : values) value = from_float<E>(normal(random));
    };
    fill(q, dk);
    fill(k, dk);
    fill(v, dv);
    if (!p.separate_denominator) return;
    fill(q_den, dk);
    fill(k_den, dk);
  }

  std::int64_t row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return (b * tokens + t) * heads + h;
  }

  // Tokens [first, first + count) as a view into the whole.
  TensorView piece(const std::vector<E>& values, std::int64_t width, std::int64_t first,
                   std::int64_t count) const {
    return TensorView::strided(values.data() + first * heads * width, {batch, count, heads, width},
                               {tokens * heads * width, heads * width, width, 1});
  }
  State::Inputs inputs(std::int64_t first, std::int64_t count) const {
    State::Inputs in{.q = piece(q, dk, first, count),
                     .k = piece(k, dk, first, count),
                     .v = piece(v, dv, first, count)};
    if (!q_den.empty()) {
      in.q_den = piece(q_den, dk, first, count);
      in.k_den = piece(k_den, dk, first, count);
    }
    return in;
  }
};

struct Expected {
  std::vector<double> o;      // [B, N, H, dv]
  std::vector<double> bound;  // how far rounding of relative size 1 per operation may move it
};

inline double feature(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::relu_eps: return std::max(x, 0.0) + 1e-6;
    case FeatureMap::relu: return std::max(x, 0.0);
    case FeatureMap::elu1: return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::identity: return x;
  }
  return std::nan("");
}

// The definition, score by score: no summaries, no prefix.
template <typename E>
Expected dense_oracle(const Problem& p, const StreamData<E>& d, const Weight& weight) {
  const std::int64_t n = d.tokens, block = p.layout.cut().block[0];
  Expected out{std::vector<double>(d.v.size()), std::vector<double>(d.v.size())};
  const auto& qd = p.separate_denominator ? d.q_den : d.q;
  const auto& kd = p.separate_denominator ? d.k_den : d.k;
  const auto sees = [&](std::int64_t s, std::int64_t t) {
    return p.mask == Mask::causal ? t <= s : t / block <= s / block;
  };
  const double operations = static_cast<double>(3 * p.dk + 2 * n + 20);
  for (std::int64_t b = 0; b < d.batch; ++b) {
    for (std::int64_t h = 0; h < d.heads; ++h) {
      struct Score {
        double value, magnitude;
      };
      const auto score = [&](const std::vector<E>& x, std::int64_t s, const std::vector<E>& y,
                             std::int64_t t) {
        Score sum{0, 0};
        for (std::int64_t c = 0; c < d.dk; ++c) {
          const double a = feature(p.feature_map, to_float(x[d.row(b, s, h) * d.dk + c]));
          const double e = feature(p.feature_map, to_float(y[d.row(b, t, h) * d.dk + c]));
          sum.value += p.scale * a * e;
          sum.magnitude += std::abs(p.scale * a * e);
        }
        return sum;
      };
      for (std::int64_t s = 0; s < n; ++s) {
        double den = p.denominator_eps(), den_magnitude = den;
        const auto add_den = [&](std::int64_t own, std::int64_t t) {
          const double m = weight(s / block, t / block, h);
          const Score x = score(qd, own, kd, t);
          den += m * x.value;
          den_magnitude += std::abs(m) * x.magnitude;
        };
        std::vector<double> num(d.dv), num_magnitude(d.dv);
        for (std::int64_t t = 0; t < n; ++t) {
          if (!sees(s, t)) continue;
          const double m = weight(s / block, t / block, h);
          const Score x = score(d.q, s, d.k, t);
          for (std::int64_t c = 0; c < d.dv; ++c) {
            const double v = to_float(d.v[d.row(b, t, h) * d.dv + c]);
            num[c] += m * x.value * v;
            num_magnitude[c] += std::abs(m * v) * x.magnitude;
          }
          if (p.normalizer == Normalizer::exact) add_den(s, t);
          if (p.normalizer == Normalizer::shared_position) {
            add_den(t / block * block + s % block,
                    t);  // the query at the same position of block b(t)
          }
        }
        for (std::int64_t c = 0; c < d.dv; ++c) {
          const std::int64_t at = d.row(b, s, h) * d.dv + c;
          if (p.normalizer == Normalizer::none) {
            out.o[at] = num[c];
            out.bound[at] = operations * num_magnitude[c];
          } else if (den != 0) {
            out.o[at] = num[c] / den;
            out.bound[at] = operations * (num_magnitude[c] / std::abs(den) +
                                          std::abs(num[c]) * den_magnitude / (den * den));
          }
        }
      }
    }
  }
  return out;
}

// Rounding of the arithmetic, and of the stored result.
template <typename E>
double unit_roundoff() {
  return std::is_same_v<E, double> ? 0x1p-52 : 0x1p-23;
}
template <typename E>
double storage_roundoff() {
  if (std::is_same_v<E, BFloat16>) return 0x1p-8;
  if (std::is_same_v<E, Float16>) return 0x1p-10;
  return 0;
}

// Largest |o - expected| as a fraction of what rounding allows; NaN counts as infinite.
template <typename E>
double worst(const std::vector<E>& o, const Expected& expected) {
  double result = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    const double allowed = unit_roundoff<E>() * expected.bound[i] +
                           storage_roundoff<E>() * (std::abs(expected.o[i]) + 0x1p-14) + 1e-300;
    const double error = std::abs(to_float(o[i]) - expected.o[i]) / allowed;
    result = std::max(result, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  return result;
}

template <typename E>
std::vector<E> poisoned(std::size_t count) {
  return std::vector<E>(count, from_float<E>(std::numeric_limits<float>::quiet_NaN()));
}

// Reads tokens [first, end) in pieces of random size; whole blocks for block_causal.
template <typename E>
void prefill_in_pieces(State& state, const StreamData<E>& d, std::int64_t first, std::int64_t end,
                       std::mt19937& random, std::vector<E>& o) {
  const std::int64_t unit = state.problem().mask == Mask::block_causal ? state.block_size() : 1;
  while (first < end) {
    const std::int64_t count = std::uniform_int_distribution<std::int64_t>(
                                   0, (end - first) / unit)(random) *
                               unit;
    state.prefill(d.inputs(first, count), d.piece(o, d.dv, first, count));
    first += count;
  }
}

template <typename E>
void step_through(State& state, const StreamData<E>& d, std::int64_t first, std::int64_t end,
                  std::vector<E>& o) {
  for (; first < end; ++first) state.step(d.inputs(first, 1), d.piece(o, d.dv, first, 1));
}

// The same bits, NaN included.
template <typename E>
bool same_bits(const std::vector<E>& a, const std::vector<E>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(E)) == 0;
}

// Weights that differ in every row, column and head, so that a wrong index shows.
inline MixingMatrix random_mixing(std::int64_t heads, std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0.1F, 1.0F);
  std::vector<float> weights(std::max<std::int64_t>(heads, 1) * size * size);
  for (float& weight : weights) weight = uniform(random);
  return MixingMatrix::from(weights.data(), heads, size, size);
}

inline Weight weights_of(const MixingMatrix& mixing) {
  return [mixing](std::int64_t i, std::int64_t b, std::int64_t head) -> double {
    return mixing.at(i, b, mixing.heads() == 0 ? 0 : head);
  };
}

}  // namespace mhla::test
