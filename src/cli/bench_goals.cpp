// The goals of the CPU kernels, judged from measured rows.
#include <functional>

#include "cli/bench_report.h"

namespace mhla::cli {
namespace {

bool is(const BenchRow& row, const char* what, DType dtype) {
  return row.what == what && row.dtype == dtype;
}

constexpr const char* kForward = "forward";
constexpr const char* kBoth = "forward+backward";

// The smallest value over all rows that have one.
Goal worst_of(const BenchReport& report, Goal goal,
              const std::function<double(const BenchRow&)>& value) {
  for (const BenchRow& row : report.rows) {
    const double x = row.shape.starts_with("tiny") ? kNotMeasured : value(row);
    if (std::isnan(x) || !(std::isnan(goal.reached) || x < goal.reached)) continue;
    goal.reached = x;
    goal.where = row.shape + " " + name(row.dtype);
  }
  return goal;
}

}  // namespace

std::vector<Goal> goals(const BenchReport& report) {
  std::vector<Goal> all;
  const auto add = [&](const char* text, double wanted,
                       const std::function<double(const BenchRow&)>& value) {
    const Goal goal = worst_of(report, {.text = text, .wanted = wanted}, value);
    if (!std::isnan(goal.reached)) all.push_back(goal);
  };
  const auto only = [](bool wanted, double value) { return wanted ? value : kNotMeasured; };
  add("forward f32 over the best composition", 2,
      [&](const BenchRow& r) { return only(is(r, kForward, DType::f32), r.ratio("composed")); });
  add("forward f32 over composed global linear attention", 1,
      [&](const BenchRow& r) { return only(is(r, kForward, DType::f32), r.ratio("linear")); });
  add("forward f32, share of the sgemm ceiling, long shapes and LM", 0.6, [&](const BenchRow& r) {
    const bool here = is(r, kForward, DType::f32) && (r.is_long || r.shape.starts_with("lm-"));
    return only(here, r.gflops() / r.ceiling);
  });
  add("forward f32, share of the sgemm ceiling, other shapes", 0.5, [&](const BenchRow& r) {
    const bool here = is(r, kForward, DType::f32) && !r.is_long && !r.shape.starts_with("lm-");
    return only(here, r.gflops() / r.ceiling);
  });
  add("forward+backward f32 over the best composition", 3,
      [&](const BenchRow& r) { return only(is(r, kBoth, DType::f32), r.ratio("composed")); });
  add("bf16 over the bf16 composition", 1.5, [&](const BenchRow& r) {
    return only(r.dtype == DType::bf16 && r.what != "decode", r.ratio("composed"));
  });
  add("bf16 over our f32", 1, [&](const BenchRow& r) {
    return only(r.dtype == DType::bf16 && r.what != "decode", r.f32_ms / r.ms);
  });
  add("over softmax attention", 1,
      [&](const BenchRow& r) { return only(r.what != "decode", r.ratio("softmax")); });
  add("2 threads over 1, long shapes", 1.8,
      [&](const BenchRow& r) { return only(r.is_long && report.threads == 2, r.thread_speedup); });
  if (report.growth.size() > 1) {
    const GrowthPoint &a = report.growth.front(), &b = report.growth.back();
    all.push_back(
        {.text = "time over linear growth from the fewest to the most tokens",
         .wanted = 1.1,
         .reached = b.ms / a.ms * static_cast<double>(a.tokens) / static_cast<double>(b.tokens),
         .where = "growth",
         .at_most = true});
  }
  return all;
}

}  // namespace mhla::cli
