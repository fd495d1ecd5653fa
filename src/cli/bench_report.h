// The numbers of a benchmark run, and how they are shown.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mhla/tensor_view.h"

namespace mhla::cli {

inline constexpr double kNotMeasured =
    std::numeric_limits<double>::quiet_NaN();  // null in JSON, a dash in tables

struct BenchBaseline {
  double ms = kNotMeasured;
  std::string way = {};      // the fastest of the obvious ways
  std::string skipped = {};  // why there is no time
};

struct BenchRow {
  std::string shape, what;  // "forward", "forward+backward", "decode"
  DType dtype = DType::f32;
  std::string implementation;
  bool is_long = false;
  std::int64_t tokens = 0;  // decode: the position
  double ms = kNotMeasured;
  double flops = 0;                      // of the linear form
  double ceiling = kNotMeasured;         // GFLOP/s of a large gemm in the same run
  double thread_speedup = kNotMeasured;  // 1 thread over all of them
  double f32_ms = kNotMeasured;          // ours in f32, taking turns with a 16-bit row
  double block_ms =
      kNotMeasured;  // decode: mean step over a block, with what is prepared meanwhile
  double worst_ms = kNotMeasured;  // decode: slowest step of a block
  double error = kNotMeasured, tolerance = kNotMeasured;
  std::string skipped = {};  // why ours was not timed
  std::map<std::string, BenchBaseline> baselines = {};

  double gflops() const { return flops / ms * 1e-6; }
  double ratio(const std::string& family) const;  // its time over ours
};

struct GrowthPoint {
  std::int64_t tokens = 0;
  double ms = 0, flops = 0;
};

struct BenchReport {
  std::string machine, compiler, compared_with;  // the last empty without --compare
  int threads = 0;
  double load = 0;                        // of other programs when the run began, in busy cores
  std::map<DType, double> ceilings = {};  // GFLOP/s
  std::vector<BenchRow> rows = {};
  std::vector<GrowthPoint> growth = {};
  int wrong = 0;  // results that disagree with the reference
};

// With much of it, no time is worth writing down.
inline constexpr double kTooMuchLoad = 0.3;

nlohmann::json to_json(const BenchReport& report);
std::string to_text(const BenchReport& report);

// What the project asks of itself: worst value reached over the rows that were measured.
struct Goal {
  std::string text;
  double wanted = 0, reached = kNotMeasured;
  std::string where = {};  // the row that is worst
  bool at_most = false;    // otherwise at least
  bool met() const { return at_most ? reached <= wanted : reached >= wanted; }
};
std::vector<Goal> goals(const BenchReport& report);  // only those that the rows speak of

}  // namespace mhla::cli
