// Every form of the operator, on every implementation of this machine, against the dense oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mhla/verify/cases.h"
#include "mhla/verify/subject.h"

namespace mhla::verify {

struct Options {
  std::string implementation;  // only this one; "state" is the streaming form. Empty: all
  std::string filter;          // only cases whose name or form contains it
  bool heavy = false;          // heavy cases on the CPU too; accelerators always run them
  int threads = 0;             // cases at a time; 0 takes all cores
  // Values of every case instead of those of its own seed; a failure names the seed it had.
  std::optional<std::uint64_t> seed;
  int seeds = 1;  // so many values of every case: of its seed, and of others that follow from it
  std::function<void(std::size_t done, std::size_t total)> progress;
};

// The results of one form in one dtype on one implementation.
struct FormResult {
  std::string form, implementation, dtype;
  std::size_t cases = 0, failed = 0;  // each case as often as it has values
  // Of the case nearest to (or furthest past) its tolerance; relative, see compare.h.
  double worst_error = 0, tolerance = 0, ratio = 0;
  // Mean share of the tolerance over all values: far below 1 unless the loss is systematic.
  double mean_ratio = 0;
  std::string worst_case, worst_tensor;
};

struct Failure {
  std::string name, form, implementation, reason;
  std::uint64_t seed = 0;
  double ratio = 0;  // of the tensor furthest past its tolerance
};

struct Report {
  std::size_t cases = 0;      // tried on at least one implementation
  std::size_t runs = 0;       // cases times their values and the implementations that serve them
  std::size_t failed = 0;     // runs that failed
  std::size_t unserved = 0;   // cases that nothing on this machine serves
  std::size_t too_heavy = 0;  // cases that only the CPU could have served, see Options::heavy
  double seconds = 0;
  std::vector<FormResult> forms;
  std::vector<Failure> failures;
};

// The name under which the streaming form appears beside the implementations.
inline constexpr const char* kStreaming = "state";

// Cases of the options' filter.
std::vector<Case> selected_cases(const Options& options);
// Seeds that a case is tried with.
std::vector<std::uint64_t> seeds_of(const Case& c, const Options& options);

Report verify(const Options& options);
// The same with given subjects, and without the streaming form.
Report verify(const Options& options, const std::vector<Subject>& subjects);

}  // namespace mhla::verify
