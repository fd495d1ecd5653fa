// Owning test tensors, random contents, and one struct that holds everything a call needs.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "mhla/mhla.h"

namespace mhla::test {

inline std::vector<double> random_values(std::size_t count, std::uint64_t seed, double low = -1,
                                         double high = 1) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(count);
  for (double& x : values) x = uniform(generator);
  return values;
}

// All tensors of one f64 problem on the CPU; outputs start as NaN.
struct Call {
  Problem problem;
  std::vector<double> q, k, v, q_den, k_den, mixing, d_o;
  std::vector<double> o, d_q, d_k, d_v, d_q_den, d_k_den, d_mixing;

  Call(const Problem& p, std::uint64_t seed) : problem(p) {
    const auto count = [&](std::int64_t tokens, std::int64_t width) {
      return static_cast<std::size_t>(p.batch * tokens * p.heads * width);
    };
    const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
    q = random_values(count(nq, p.dk), seed + 1);
    k = random_values(count(nk, p.dk), seed + 2);
    v = random_values(count(nk, p.dv), seed + 3);
    if (p.separate_denominator) {
      q_den = random_values(count(nq, p.dk), seed + 4, 0.1, 1);
      k_den = random_values(count(nk, p.dk), seed + 5, 0.1, 1);
    }
    d_o = random_values(count(nq, p.dv), seed + 6);
    mixing = random_values(
        static_cast<std::size_t>((p.mixing_per_head ? p.heads : 1) * p.layout.mixing_size() *
                                 p.keys().mixing_size()),
        seed + 7, 0.05, 1);
    const auto poison = [](const std::vector<double>& like) {
      return std::vector<double>(like.size(), std::numeric_limits<double>::quiet_NaN());
    };
    o = poison(d_o);
    d_q = poison(q), d_k = poison(k), d_v = poison(v), d_mixing = poison(mixing);
    d_q_den = poison(q_den), d_k_den = poison(k_den);
  }

  TensorView query_view(const std::vector<double>& x) const {
    return view(x, problem.layout.tokens(), problem.dk);
  }
  TensorView key_view(const std::vector<double>& x) const {
    return view(x, problem.keys().tokens(), problem.dk);
  }
  TensorView value_view(const std::vector<double>& x) const {
    return view(x, problem.keys().tokens(), problem.dv);
  }
  TensorView output_view(const std::vector<double>& x) const {
    return view(x, problem.layout.tokens(), problem.dv);
  }
  TensorView mixing_view(const std::vector<double>& x) const {
    const std::int64_t rows = problem.layout.mixing_size(), cols = problem.keys().mixing_size();
    if (problem.mixing_per_head) return TensorView::of(x.data(), {problem.heads, rows, cols});
    return TensorView::of(x.data(), {rows, cols});
  }

  ForwardInputs inputs() const {
    ForwardInputs in{
        .q = query_view(q), .k = key_view(k), .v = value_view(v), .mixing = mixing_view(mixing)};
    if (problem.separate_denominator) in.q_den = query_view(q_den), in.k_den = key_view(k_den);
    return in;
  }
  const std::vector<double>& forward() {
    mhla::forward(plan(problem), inputs(), {.o = output_view(o)});
    return o;
  }
  BackwardInputs backward_inputs() const {
    const ForwardInputs in = inputs();
    return {.q = in.q,
            .k = in.k,
            .v = in.v,
            .mixing = in.mixing,
            .o = output_view(o),
            .d_o = output_view(d_o),
            .q_den = in.q_den,
            .k_den = in.k_den};
  }
  BackwardOutputs backward_outputs() const {
    BackwardOutputs out{.d_q = query_view(d_q),
                        .d_k = key_view(d_k),
                        .d_v = value_view(d_v),
                        .d_mixing = mixing_view(d_mixing)};
    if (problem.separate_denominator) {
      out.d_q_den = query_view(d_q_den), out.d_k_den = key_view(d_k_den);
    }
    return out;
  }
  void backward() {
    forward();
    mhla::backward(plan(problem), backward_inputs(), backward_outputs());
  }

 private:
  TensorView view(const std::vector<double>& x, std::int64_t tokens, std::int64_t width) const {
    return TensorView::of(x.data(), {problem.batch, tokens, problem.heads, width});
  }
};

// ||a - b|| / ||b||, NaN when anything was left unwritten.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1.0);
}

// The message of the mhla::Error that f throws, or "" when it throws none.
template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace mhla::test
