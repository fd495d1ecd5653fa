// `mhla bench models`: one forward of whole networks, MHLA beside softmax and linear attention.
#include "cli/bench_models.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/bench_timing.h"
#include "cli/machine.h"
#include "cli/table.h"

namespace mhla::cli {
namespace {

struct Measured {
  NetworkRow row;
  std::map<std::string, BenchBaseline> times;  // by attention; ms of one forward of the batch

  double per_second(const std::string& attention) const {
    const auto found = times.find(attention);
    return found == times.end() ? kNotMeasured
                                : 1000 * static_cast<double>(row.batch) / found->second.ms;
  }
  double ratio(const std::string& attention) const {
    return per_second("mhla") / per_second(attention);
  }
};

// The pictures of a batch shrink as they grow, so that a forward has about the same tokens.
std::vector<NetworkRow> rows_of(bool gpu) {
  std::vector<NetworkRow> rows;
  const std::int64_t most = gpu ? 4096 : 512;
  for (std::int64_t size = 256; size <= most; size *= 2) {
    const std::int64_t side = most / size;
    rows.push_back({.name = "dit-s/2@" + std::to_string(size),
                    .model = "dit-s/2",
                    .options = "image_size=" + std::to_string(size),
                    .batch = gpu ? std::max<std::int64_t>(1, side * side) : side * side});
  }
  if (!gpu) return rows;
  rows.push_back({.name = "wan", .model = "wan2.1-1.3b", .options = {}, .over_softmax = 2.5});
  rows.push_back({.name = "dit-xl/2@256",
                  .model = "dit-xl/2",
                  .options = "image_size=256",
                  .batch = 64,
                  .compared = false});
  rows.push_back(
      {.name = "lm-340m@2048", .model = "lm-340m", .options = {}, .batch = 8, .compared = false});
  return rows;
}

std::vector<NetworkRow> select(const std::vector<NetworkRow>& rows,
                               const std::vector<std::string>& names) {
  if (names.empty()) return rows;
  std::vector<NetworkRow> chosen;
  for (const std::string& wanted : names) {
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const NetworkRow& row) { return row.name == wanted; });
    if (found == rows.end()) {
      std::string known;
      for (const NetworkRow& row : rows) known += (known.empty() ? "" : ", ") + row.name;
      fail("bench", "--shape: unknown network '", wanted, "'; known here: ", known);
    }
    chosen.push_back(*found);
  }
  return chosen;
}

Measured measure(Networks& networks, const NetworkRow& row, double seconds) {
  std::vector<NetworkCall> calls;
  for (const char* attention : {"mhla", "paper", "softmax", "linear"}) {
    if (!row.compared && std::string(attention) != "mhla") continue;
    for (NetworkCall& call : networks.prepare(row, attention)) calls.push_back(std::move(call));
  }
  std::vector<std::function<void()>> forwards;
  forwards.reserve(calls.size());
  for (const NetworkCall& call : calls) forwards.push_back(call.forward);
  const std::vector<double> times = race(forwards, seconds);
  Measured result{.row = row, .times = {}};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    BenchBaseline& best = result.times[calls[i].attention];
    if (!(best.ms <= times[i])) best = {.ms = times[i], .way = calls[i].way};
  }
  return result;
}

std::string number(const char* format, double x) {
  if (!std::isfinite(x)) return "-";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, format, x);
  return buffer;
}

std::string to_text(const Networks& networks, const std::vector<Measured>& all) {
  Table table;
  table.row({"network", "batch", "mhla ms", "mhla/s", "paper/s", "softmax/s", "linear/s",
             "over softmax", "paper over softmax", "over linear", "wanted"});
  for (const Measured& each : all) {
    table.row({each.row.name, std::to_string(each.row.batch),
               number("%.2f", each.times.at("mhla").ms), number("%.4g", each.per_second("mhla")),
               number("%.4g", each.per_second("paper")), number("%.4g", each.per_second("softmax")),
               number("%.4g", each.per_second("linear")), number("%.2fx", each.ratio("softmax")),
               number("%.2fx", each.per_second("paper") / each.per_second("softmax")),
               number("%.2fx", each.ratio("linear")),
               each.row.compared ? number("%.1fx softmax", each.row.over_softmax) : "-"});
  }
  return networks.version() + " on " + networks.device() + ", " + networks.dtype() +
         ", one forward, samples a second, random weights\n" + table.text() +
         "mhla: the authors' layer, paper: its preset 'paper'; softmax: the faster of its back "
         "ends\n";
}

nlohmann::json to_json(const Networks& networks, const std::vector<Measured>& all) {
  nlohmann::json rows = nlohmann::json::array();
  const auto finite = [](double x) { return std::isfinite(x) ? nlohmann::json(x) : nullptr; };
  for (const Measured& each : all) {
    nlohmann::json baselines = nlohmann::json::object(), ratio = nlohmann::json::object();
    nlohmann::json ways = nlohmann::json::object();
    for (const auto& [attention, best] : each.times) {
      if (attention == "mhla") continue;
      baselines[attention] = finite(best.ms);
      ratio[attention] = finite(each.ratio(attention));
      if (!best.way.empty()) ways[attention] = best.way;
    }
    rows.push_back({{"shape", each.row.name},
                    {"what", "forward"},
                    {"batch", each.row.batch},
                    {"ms", finite(each.times.at("mhla").ms)},
                    {"baselines", baselines},
                    {"ratio", ratio},
                    {"ways", ways}});
  }
  return {{"machine", networks.device()},
          {"cpu", cpu_model()},
          {"compared_with", networks.version()},
          {"dtype", networks.dtype()},
          {"rows", rows}};
}

}  // namespace

void bench_models(const BenchOptions& options) {
  const std::unique_ptr<Networks> networks = load_networks();
  const bool gpu = networks->device() != "cpu";
  std::vector<Measured> all;
  for (const NetworkRow& row : select(rows_of(gpu), options.shapes)) {
    std::fprintf(stderr, "bench: %s\n", row.name.c_str());
    all.push_back(measure(*networks, row, options.seconds));
  }
  std::cout << (options.json ? to_json(*networks, all).dump(2) + "\n" : to_text(*networks, all));
}

}  // namespace mhla::cli
