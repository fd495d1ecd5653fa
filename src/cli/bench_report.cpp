// A benchmark report as JSON and as tables.
#include "cli/bench_report.h"

#include <cstdio>

#include "cli/table.h"

namespace mhla::cli {
namespace {

nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

std::string text(const char* format, double x) {
  if (!std::isfinite(x)) return "-";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, format, x);
  return buffer;
}

nlohmann::json to_json(const BenchRow& row) {
  nlohmann::json baselines = nlohmann::json::object(), ratio = nlohmann::json::object();
  nlohmann::json ways = nlohmann::json::object(), skipped = nlohmann::json::object();
  if (!row.skipped.empty()) skipped["mhla"] = row.skipped;
  for (const auto& [family, baseline] : row.baselines) {
    baselines[family] = number(baseline.ms);
    ratio[family] = number(row.ratio(family));
    if (!baseline.way.empty()) ways[family] = baseline.way;
    if (!baseline.skipped.empty()) skipped[family] = baseline.skipped;
  }
  nlohmann::json result = {{"shape", row.shape},
                           {"what", row.what},
                           {"dtype", name(row.dtype)},
                           {"tokens", row.tokens},
                           {"implementation", row.implementation},
                           {"ms", number(row.ms)},
                           {"gflops", number(row.gflops())},
                           {"ceiling_share", number(row.gflops() / row.ceiling)},
                           {"thread_speedup", number(row.thread_speedup)},
                           {"f32_ms", number(row.f32_ms)},
                           {"error", number(row.error)},
                           {"tolerance", number(row.tolerance)},
                           {"baselines", baselines},
                           {"ratio", ratio},
                           {"ways", ways},
                           {"skipped", skipped}};
  if (row.what == "decode") {
    result["block_mean_ms"] = number(row.block_ms);
    result["block_worst_ms"] = number(row.worst_ms);
  }
  return result;
}

// `unit`: how many of the table's units a millisecond has.
std::string against(const BenchRow& row, const std::string& family, double unit = 1) {
  const auto found = row.baselines.find(family);
  if (found == row.baselines.end() || std::isnan(found->second.ms)) return "-";
  return text(unit > 1 ? "%.1f" : "%.3f", unit * found->second.ms) + " (" +
         text("%.2f", row.ratio(family)) + "x)";
}

std::string operator_table(const BenchReport& report) {
  Table table;
  table.row({"shape", "dtype", "what", "ms", "GFLOP/s", "ceiling", "threads", "composed", "linear",
             "softmax", "error", "implementation"});
  bool any = false;
  for (const BenchRow& row : report.rows) {
    if (row.what == "decode") continue;
    any = true;
    table.row({row.shape, name(row.dtype), row.what, text("%.3f", row.ms),
               text("%.1f", row.gflops()), text("%.0f %%", 100 * row.gflops() / row.ceiling),
               text("%.2fx", row.thread_speedup), against(row, "composed"), against(row, "linear"),
               against(row, "softmax"), text("%.1e", row.error), row.implementation});
  }
  return any ? table.text() : "";
}

std::string decode_table(const BenchReport& report) {
  Table table;
  constexpr double kMicroseconds = 1000;
  table.row({"decode", "dtype", "after tokens", "us a step", "mean", "slowest", "composed us",
             "softmax us", "error"});
  bool any = false;
  for (const BenchRow& row : report.rows) {
    if (row.what != "decode") continue;
    any = true;
    table.row({row.shape, name(row.dtype), std::to_string(row.tokens), text("%.1f", 1e3 * row.ms),
               text("%.1f", 1e3 * row.block_ms), text("%.1f", 1e3 * row.worst_ms),
               against(row, "composed", kMicroseconds), against(row, "softmax", kMicroseconds),
               text("%.1e", row.error)});
  }
  return any ? "\n" + table.text() : "";
}

std::string growth_table(const BenchReport& report) {
  if (report.growth.empty()) return "";
  Table table;
  table.row({"growth", "ms", "us a token", "over linear", "GFLOP/s"});
  const GrowthPoint& first = report.growth.front();
  for (const GrowthPoint& point : report.growth) {
    const double factor = static_cast<double>(point.tokens) / static_cast<double>(first.tokens);
    table.row({std::to_string(point.tokens) + " tokens", text("%.3f", point.ms),
               text("%.4f", 1e3 * point.ms / static_cast<double>(point.tokens)),
               text("%.3f", point.ms / first.ms / factor),
               text("%.1f", point.flops / point.ms * 1e-6)});
  }
  return "\n" + table.text();
}

std::string goal_table(const BenchReport& report) {
  const std::vector<Goal> all = goals(report);
  if (all.empty()) return "";
  Table table;
  table.row({"goal (the worst row counts)", "wanted", "reached", "", "where"});
  for (const Goal& goal : all) {
    table.row({goal.text, (goal.at_most ? "<= " : ">= ") + text("%.2f", goal.wanted),
               text("%.2f", goal.reached), goal.met() ? "met" : "missed", goal.where});
  }
  return "\n" + table.text();
}

std::string skipped_lines(const BenchReport& report) {
  std::string lines;
  const auto add = [&](const BenchRow& row, const std::string& who, const std::string& why) {
    if (why.empty()) return;
    lines += "skipped: " + who + " at " + row.shape + " " + name(row.dtype) + " " + row.what +
             ": " + why + "\n";
  };
  for (const BenchRow& row : report.rows) {
    add(row, "mhla", row.skipped);
    for (const auto& [family, baseline] : row.baselines) add(row, family, baseline.skipped);
  }
  return lines.empty() ? "" : "\n" + lines;
}

}  // namespace

double BenchRow::ratio(const std::string& family) const {
  const auto found = baselines.find(family);
  return found == baselines.end() ? kNotMeasured : found->second.ms / ms;
}

nlohmann::json to_json(const BenchReport& report) {
  nlohmann::json rows = nlohmann::json::array(), growth = nlohmann::json::array();
  nlohmann::json ceilings = nlohmann::json::object(), reached = nlohmann::json::array();
  for (const BenchRow& row : report.rows) rows.push_back(to_json(row));
  for (const GrowthPoint& point : report.growth) {
    growth.push_back({{"tokens", point.tokens}, {"ms", point.ms}, {"flops", point.flops}});
  }
  for (const auto& [dtype, gflops] : report.ceilings) ceilings[name(dtype)] = gflops;
  for (const Goal& goal : goals(report)) {
    reached.push_back({{"goal", goal.text},
                       {"wanted", goal.wanted},
                       {"reached", number(goal.reached)},
                       {"met", goal.met()},
                       {"where", goal.where}});
  }
  return {{"machine", report.machine},
          {"compiler", report.compiler},
          {"threads", report.threads},
          {"load", report.load},
          {"compared_with", report.compared_with},
          {"gemm_gflops", ceilings},
          {"wrong", report.wrong},
          {"rows", rows},
          {"growth", growth},
          {"goals", reached}};
}

std::string to_text(const BenchReport& report) {
  std::string head = report.machine + ", " + std::to_string(report.threads) + " threads, " +
                     report.compiler;
  if (!report.compared_with.empty()) head += ", " + report.compared_with;
  for (const auto& [dtype, gflops] : report.ceilings) {
    head += std::string(", ") + name(dtype) + " gemm " + text("%.0f GFLOP/s", gflops);
  }
  if (report.load > kTooMuchLoad) {
    head += "\nWARNING: other programs kept " + text("%.1f", report.load) +
            " cores busy when this run began: do not trust its times";
  }
  return head + "\nbaselines: ms (their time over ours); GFLOP/s count the linear form\n\n" +
         operator_table(report) + decode_table(report) + growth_table(report) + goal_table(report) +
         skipped_lines(report);
}

}  // namespace mhla::cli
