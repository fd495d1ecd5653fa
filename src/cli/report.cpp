// Tables and pages of runs: what `mhla compare` prints and `mhla train` leaves in its folder.
#include "cli/report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/file_bytes.h"
#include "io/html.h"

namespace mhla::cli {
namespace {

namespace fs = std::filesystem;
using Runs = std::vector<ReportedRun>;

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.5g", value);
  return buffer;
}

// What any of the runs was evaluated by, in the order of the task.
std::vector<std::string> measures(const Runs& runs) {
  std::vector<std::string> all;
  for (const ReportedRun& run : runs) {
    for (const std::string& name : run.history.eval_order) {
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    }
  }
  return all;
}

std::string last(const std::map<std::string, io::Curve>& curves, const std::string& name) {
  const auto found = curves.find(name);
  return found == curves.end() ? "-" : number(found->second.points.back().second);
}

io::Chart chart(const Runs& runs, bool evaluation, const std::string& name) {
  io::Chart result{.title = std::string(evaluation ? "test " : "training ") + name,
                   .x_label = "epoch",
                   .y_label = name};
  for (const ReportedRun& run : runs) {
    const auto& curves = evaluation ? run.history.eval : run.history.train;
    if (const auto found = curves.find(name); found != curves.end()) {
      result.curves.push_back(found->second);
    }
  }
  return result;
}

// Empty where there is no such file.
std::string file_text(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return {};
  return std::string(io::FileBytes::map(path.string())->bytes());
}

std::string word(const nlohmann::json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
}

// `mhla eval RUN --examples N` leaves pictures and a list of them in the run.
std::vector<io::Picture> examples(const fs::path& folder) {
  const auto list = nlohmann::json::parse(file_text(folder / "examples.json"), nullptr,
                                          /*allow_exceptions=*/false);
  std::vector<io::Picture> pictures;
  if (!list.is_array()) return pictures;
  for (const auto& entry : list) {
    if (!entry.is_object()) continue;
    const std::string file = word(entry, "file"), label = word(entry, "label"),
                      predicted = word(entry, "predicted");
    if (file.find('/') != std::string::npos) continue;  // only what lies in that folder
    std::string png = file_text(folder / file);
    if (png.empty()) continue;
    const bool right = label == predicted;
    std::string caption = predicted;
    if (!right) caption.append(" (is ").append(label).append(")");
    pictures.push_back({.png = std::move(png), .caption = std::move(caption), .marked = !right});
  }
  return pictures;
}

}  // namespace

std::vector<ReportedRun> read_runs(const std::vector<std::string>& folders) {
  Runs runs;
  for (const std::string& folder : folders) runs.push_back({folder, io::read_run(folder)});
  return runs;
}

double median_rate(const io::RunHistory& run) {
  const auto found = run.train.find("samples_per_second");
  if (found == run.train.end()) return 0;
  std::vector<double> rates;
  for (const auto& [epoch, rate] : found->second.points) rates.push_back(rate);
  if (rates.size() > 1) rates.erase(rates.begin());
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

std::vector<std::vector<std::string>> report_rows(const Runs& runs) {
  std::vector<std::vector<std::string>> table = {{"run", "steps", "train loss"}};
  const std::vector<std::string> names = measures(runs);
  table[0].insert(table[0].end(), names.begin(), names.end());
  table[0].emplace_back("samples/s");
  for (const auto& [folder, run] : runs) {
    std::vector<std::string> row = {run.name, std::to_string(run.steps), last(run.train, "loss")};
    for (const std::string& name : names) row.push_back(last(run.eval, name));
    row.push_back(number(median_rate(run)));
    table.push_back(row);
  }
  return table;
}

void write_report(const Runs& runs, const std::string& path) {
  const std::string title = runs.size() == 1 ? runs[0].history.name
                                             : std::to_string(runs.size()) + " runs";
  io::HtmlPage page("mhla: " + title);
  page.paragraph("Last values of each run; the rate is the median of those logged.");
  page.table(report_rows(runs));
  for (const std::string& name : measures(runs)) page.chart(chart(runs, true, name));
  page.chart(chart(runs, false, "loss"));
  for (const auto& [folder, run] : runs) {
    const std::vector<io::Picture> pictures = examples(fs::path(folder) / "examples");
    if (pictures.empty()) continue;
    page.heading(run.name + ": predictions for test pictures");
    page.paragraph("A red frame: predicted wrongly.");
    page.pictures(pictures);
  }
  for (const auto& [folder, run] : runs) {
    const std::string config = file_text(fs::path(folder) / "config.yaml");
    if (config.empty()) continue;
    page.heading(run.name + ": configuration");
    page.code(config);
  }
  page.write(path);
}

}  // namespace mhla::cli
