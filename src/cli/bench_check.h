// Results of a benchmark case against the f64 reference, before anything is timed.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_data.h"

namespace mhla::cli {

// What one head has to be: the last head of the last batch entry; of long causal sequences the
// first tokens, on which nothing later has an influence.
struct BenchTruth {
  Problem problem;                                 // f64, one head
  std::vector<double> o, d_q, d_k, d_v, d_mixing;  // gradients empty when not asked for
};

// `data` in any dtype; its output gradient is cut to the tokens that are checked.
BenchTruth make_truth(const Problem& problem, BenchData& data, bool gradients);

struct BenchAgreement {
  double error = 0;      // ||got - expected|| / ||expected|| of the worst tensor
  double tolerance = 0;  // for it
  std::string tensor;
  bool ok() const { return error <= tolerance; }  // NaN is not
};

// The head of the truth inside data.o and, where the truth has them, the gradients of q, k and v.
BenchAgreement check_results(const BenchTruth& truth, const BenchData& data);
BenchAgreement check_output(const BenchTruth& truth, const BenchData& data);  // o alone
// d_mixing sums over all heads; so the plan's implementation computes the truth's one head alone.
BenchAgreement check_mixing_gradient(const BenchTruth& truth, const Plan& plan,
                                     const BenchData& data);

BenchAgreement worse(const BenchAgreement& a, const BenchAgreement& b);

}  // namespace mhla::cli
