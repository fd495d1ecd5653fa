// `mhla compare`: runs side by side, as a table, as JSON and as a page with their curves.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "cli/table.h"
#include "io/html.h"
#include "io/run_history.h"
#include "mhla/error.h"

namespace mhla::cli {
namespace {

using io::RunHistory;
using Rows = std::vector<std::vector<std::string>>;

struct Arguments {
  std::vector<std::string> runs;
  std::string out;
  bool json = false;
};

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.5g", value);
  return buffer;
}

// Whole passes after the first: the first one warms up.
double median_rate(const RunHistory& run) {
  const auto found = run.train.find("samples_per_second");
  if (found == run.train.end()) return 0;
  std::vector<double> rates;
  for (const auto& [epoch, rate] : found->second.points) rates.push_back(rate);
  if (rates.size() > 1) rates.erase(rates.begin());
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

// What any of the runs was evaluated by, in the order of the task.
std::vector<std::string> measures(const std::vector<RunHistory>& runs) {
  std::vector<std::string> all;
  for (const RunHistory& run : runs) {
    for (const std::string& name : run.eval_order) {
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    }
  }
  return all;
}

std::string last(const std::map<std::string, io::Curve>& curves, const std::string& name) {
  const auto found = curves.find(name);
  return found == curves.end() ? "-" : number(found->second.points.back().second);
}

Rows rows(const std::vector<RunHistory>& runs) {
  Rows table = {{"run", "steps", "train loss"}};
  const std::vector<std::string> names = measures(runs);
  table[0].insert(table[0].end(), names.begin(), names.end());
  table[0].push_back("samples/s");
  for (const RunHistory& run : runs) {
    std::vector<std::string> row = {run.name, std::to_string(run.steps), last(run.train, "loss")};
    for (const std::string& name : names) row.push_back(last(run.eval, name));
    row.push_back(number(median_rate(run)));
    table.push_back(row);
  }
  return table;
}

io::Chart chart(const std::vector<RunHistory>& runs, bool evaluation, const std::string& name) {
  io::Chart result{.title = std::string(evaluation ? "test " : "training ") + name,
                   .x_label = "epoch",
                   .y_label = name};
  for (const RunHistory& run : runs) {
    const auto& curves = evaluation ? run.eval : run.train;
    if (const auto found = curves.find(name); found != curves.end()) {
      result.curves.push_back(found->second);
    }
  }
  return result;
}

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `mhla eval RUN --examples N` leaves pictures and a list of them in the run.
std::vector<io::Picture> examples(const std::string& run) {
  const std::filesystem::path folder = std::filesystem::path(run) / "examples";
  const auto list = nlohmann::json::parse(whole_file(folder / "examples.json"), nullptr,
                                          /*allow_exceptions=*/false);
  std::vector<io::Picture> pictures;
  if (!list.is_array()) return pictures;
  for (const auto& entry : list) {
    const std::string file = entry.value("file", ""), label = entry.value("label", ""),
                      predicted = entry.value("predicted", "");
    // Only what lies in that folder.
    if (file.empty() || file.find('/') != std::string::npos) continue;
    const bool right = label == predicted;
    std::string caption = predicted;
    if (!right) caption.append(" (is ").append(label).append(")");
    pictures.push_back(
        {.png = whole_file(folder / file), .caption = std::move(caption), .marked = !right});
  }
  return pictures;
}

void write_page(const Arguments& arguments, const std::vector<RunHistory>& runs) {
  io::HtmlPage page("mhla: " + std::to_string(runs.size()) + " runs");
  page.paragraph("Last values of each run; the rate is the median of those logged.");
  page.table(rows(runs));
  for (const std::string& name : measures(runs)) page.chart(chart(runs, true, name));
  page.chart(chart(runs, false, "loss"));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::vector<io::Picture> pictures = examples(arguments.runs[i]);
    if (pictures.empty()) continue;
    page.heading(runs[i].name + ": predictions for test pictures");
    page.paragraph("A red frame: predicted wrongly.");
    page.pictures(pictures);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string config = whole_file(std::filesystem::path(arguments.runs[i]) / "config.yaml");
    if (config.empty()) continue;
    page.heading(runs[i].name + ": configuration");
    page.code(config);
  }
  page.write(arguments.out);
}

nlohmann::json document(const std::vector<RunHistory>& runs) {
  nlohmann::json list = nlohmann::json::array();
  for (const RunHistory& run : runs) {
    nlohmann::json entry = {
        {"run", run.name}, {"steps", run.steps}, {"samples_per_second", median_rate(run)}};
    for (const auto& [name, curve] : run.train) entry["train"][name] = curve.points.back().second;
    for (const auto& [name, curve] : run.eval) {
      entry["eval"][name] = curve.points.back().second;
      for (const auto& point : curve.points) entry["curves"][name].push_back(point);
    }
    list.push_back(entry);
  }
  return {{"runs", list}};
}

void compare(const Arguments& arguments) {
  std::vector<RunHistory> runs;
  for (const std::string& folder : arguments.runs) runs.push_back(io::read_run(folder));
  if (!arguments.out.empty()) write_page(arguments, runs);
  if (arguments.json) {
    std::cout << document(runs).dump(2) << "\n";
    return;
  }
  Table table;
  for (const auto& row : rows(runs)) table.row(row);
  std::cout << table.text();
  if (!arguments.out.empty()) std::cout << "\nreport: " << arguments.out << "\n";
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", "Put runs side by side");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("runs", arguments->runs, "Folders of runs")->type_name("RUN...")->required();
  command->add_option("--out", arguments->out, "Write a page with their curves")
      ->type_name("FILE.html");
  command->add_flag("--json", arguments->json, "Print one JSON document");
  command->footer("Example: mhla compare runs/softmax runs/mhla --out report.html");
  command->callback([arguments] { compare(*arguments); });
}

}  // namespace mhla::cli
