// `mhla compare`: runs side by side, as a table, as JSON and as a page with their curves.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "cli/report.h"
#include "cli/table.h"

namespace mhla::cli {
namespace {

struct Arguments {
  std::vector<std::string> runs;
  std::string out;
  bool json = false;
};

nlohmann::json document(const std::vector<ReportedRun>& runs) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [folder, run] : runs) {
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
  const std::vector<ReportedRun> runs = read_runs(arguments.runs);
  if (!arguments.out.empty()) write_report(runs, arguments.out);
  if (arguments.json) {
    // Names of folders need not be UTF-8.
    std::cout << document(runs).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
    return;
  }
  Table table;
  for (const auto& row : report_rows(runs)) table.row(row);
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
