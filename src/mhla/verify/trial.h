// One case on one subject: run it on poisoned buffers and compare with the oracle.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mhla/verify/cases.h"
#include "mhla/verify/compare.h"
#include "mhla/verify/subject.h"

namespace mhla::verify {

// What the oracle says about a case; computed once, used for every subject.
struct Truth {
  DenseInputs inputs;
  DenseAnswer answer;
  std::optional<DenseTensors> naive;  // bf16 and f16 only
};
Truth truth_of(const Case& c);

struct Outcome {
  Agreement worst;
  std::string tensor;              // where the worst agreement was: "o", "d_q"
  std::vector<std::string> wrong;  // empty: passed
};

// Forward and backward, twice: values, unread inputs, untouched surroundings, repeatable bits.
Outcome try_case(const Case& c, const Truth& truth, const Subject& subject, const Plan& plan);

// The streaming form of a case, in pieces and steps, or the reason why it has none.
std::optional<std::string> refuses_streaming(const Case& c);
Outcome try_streaming(const Case& c, const Truth& truth);

}  // namespace mhla::verify
