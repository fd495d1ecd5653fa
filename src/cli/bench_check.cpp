// One head in f64, and relative errors in the Frobenius norm.
#include "cli/bench_check.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/half.h"
#include "mhla/verify/rounding.h"

namespace mhla::cli {
namespace {

constexpr std::int64_t kPrefix = 4096;  // tokens of a causal sequence that are checked

std::vector<double> read(const TensorView& tensor) {  // [1, N, 1, D] or [rows, cols]
  const bool matrix = tensor.rank == 2;
  const std::int64_t rows = matrix ? tensor.shape[0] : tensor.shape[1];
  const std::int64_t cols = matrix ? tensor.shape[1] : tensor.shape[3];
  const std::int64_t stride = matrix ? tensor.strides[0] : tensor.strides[1];
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(rows * cols));
  with_dtype(tensor.dtype, [&]<typename T>(T) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = static_cast<const T*>(tensor.data) + i * stride;
      for (std::int64_t j = 0; j < cols; ++j) values.push_back(to_float(row[j]));
    }
  });
  return values;
}

// The head that is checked, out of a tensor of the whole problem.
TensorView checked(const BenchTruth& truth, const TensorView& tensor) {
  return one_head(tensor, tensor.shape[0] - 1, tensor.shape[2] - 1, truth.problem.layout.tokens());
}

// Sums of n terms err by about sqrt(n) roundings. Beyond that, storing a 16-bit tensor costs one
// rounding, and kernels may round features and summaries to 16 bits for the matrix units.
double tolerance(const Problem& problem, DType dtype) {
  constexpr double kRoundings = 8;
  const double terms = static_cast<double>(problem.layout.tokens() + problem.dk);
  const double sums = kRoundings * verify::unit_roundoff(DType::f32) * std::sqrt(terms);
  return dtype == DType::f32 ? sums : sums + kRoundings * verify::unit_roundoff(dtype);
}

BenchAgreement compare(const BenchTruth& truth, const char* name,
                       const std::vector<double>& expected, const TensorView& got) {
  const std::vector<double> values = read(got);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return {.error = std::sqrt(difference) / std::sqrt(norm),
          .tolerance = tolerance(truth.problem, got.dtype),
          .tensor = name};
}

}  // namespace

BenchTruth make_truth(const Problem& problem, BenchData& data, bool gradients) {
  BenchTruth truth{.problem = problem, .o = {}, .d_q = {}, .d_k = {}, .d_v = {}, .d_mixing = {}};
  Problem& p = truth.problem;
  p.batch = p.heads = 1;
  p.dtype = DType::f64;
  if (p.mask == Mask::causal && p.layout.tokens() > kPrefix) {
    p.layout = BlockLayout::sequence(kPrefix, p.layout.cut());
    data.fill_output_gradient(kPrefix);
  }
  const std::int64_t n = p.layout.tokens();
  const std::vector<double> q = read(checked(truth, data.q)), k = read(checked(truth, data.k)),
                            v = read(checked(truth, data.v)), d_o = read(checked(truth, data.d_o));
  const std::vector<double> m = read(data.mixing);
  const auto view = [&](const std::vector<double>& x, std::int64_t width) {
    return TensorView::of(x.data(), {1, n, 1, width});
  };
  const TensorView mixing = TensorView::of(m.data(), {data.mixing.shape[0], data.mixing.shape[1]});
  const Plan reference = plan(p, {.implementation = "reference"});
  truth.o.resize(d_o.size());
  forward(reference, {.q = view(q, p.dk), .k = view(k, p.dk), .v = view(v, p.dv), .mixing = mixing},
          {.o = view(truth.o, p.dv)});
  if (!gradients) return truth;
  truth.d_q.resize(q.size());
  truth.d_k.resize(k.size());
  truth.d_v.resize(v.size());
  truth.d_mixing.resize(m.size());
  backward(reference,
           {.q = view(q, p.dk),
            .k = view(k, p.dk),
            .v = view(v, p.dv),
            .mixing = mixing,
            .o = view(truth.o, p.dv),
            .d_o = view(d_o, p.dv)},
           {.d_q = view(truth.d_q, p.dk),
            .d_k = view(truth.d_k, p.dk),
            .d_v = view(truth.d_v, p.dv),
            .d_mixing = TensorView::of(truth.d_mixing.data(), {mixing.shape[0], mixing.shape[1]})});
  return truth;
}

BenchAgreement worse(const BenchAgreement& a, const BenchAgreement& b) {
  // A NaN compares as false and so counts as the worse one.
  return a.error / a.tolerance >= b.error / b.tolerance || std::isnan(a.error) ? a : b;
}

BenchAgreement check_output(const BenchTruth& truth, const BenchData& data) {
  return compare(truth, "o", truth.o, checked(truth, data.o));
}

BenchAgreement check_results(const BenchTruth& truth, const BenchData& data) {
  BenchAgreement worst = check_output(truth, data);
  if (truth.d_q.empty()) return worst;
  worst = worse(worst, compare(truth, "d_q", truth.d_q, checked(truth, data.d_q)));
  worst = worse(worst, compare(truth, "d_k", truth.d_k, checked(truth, data.d_k)));
  return worse(worst, compare(truth, "d_v", truth.d_v, checked(truth, data.d_v)));
}

BenchAgreement check_mixing_gradient(const BenchTruth& truth, const Plan& whole,
                                     const BenchData& data) {
  Problem problem = truth.problem;
  problem.dtype = data.q.dtype;
  const Plan part = plan(problem, {.implementation = whole.implementation()});
  std::vector<float> gradient(truth.d_mixing.size(), std::nanf(""));
  const TensorView d_mixing = TensorView::of(gradient.data(),
                                             {data.mixing.shape[0], data.mixing.shape[1]});
  backward(part,
           {.q = checked(truth, data.q),
            .k = checked(truth, data.k),
            .v = checked(truth, data.v),
            .mixing = data.mixing,
            .o = checked(truth, data.o),
            .d_o = checked(truth, data.d_o)},
           {.d_mixing = d_mixing});
  BenchAgreement result = compare(truth, "d_mixing", truth.d_mixing, d_mixing);
  // It is kept in f32, but computed from tensors of the problem's dtype.
  result.tolerance = tolerance(truth.problem, data.q.dtype);
  return result;
}

}  // namespace mhla::cli
