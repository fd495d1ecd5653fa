// The matrix of generated problems that every implementation is compared on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/problem.h"
#include "mhla/verify/dense_oracle.h"

namespace mhla::verify {

struct Case {
  std::string name;  // unique; says everything that distinguishes the case
  std::string form;  // the row of the report: "causal/exact", "varlen/none", "cross/exact"
  Problem problem;
  std::uint64_t seed = 0;  // hash of the name
  DType mixing_dtype = DType::f32;
  // Elements between neighbouring token rows. At -1 each tensor is contiguous; otherwise q, k and v
  // are slices of one fused projection.
  std::int64_t gap = -1;
  std::int64_t spare_mixing = 0;  // rows and columns of the matrix beyond those the layout needs
  bool zero_row = false;          // the last query block has weights 0: its denominator vanishes
  // Which of d_q, d_k, d_v, d_mixing the caller does not ask for; -1 asks for all.
  int skipped_gradient = -1;
  bool heavy = false;  // head sizes of real models: seconds in the oracle, for accelerators
};

std::vector<Case> cases();

// Values of the case, rounded to the dtypes they are stored in, so that the oracle reads exactly
// what the implementation reads.
DenseInputs make_inputs(const Case& c);

}  // namespace mhla::verify
