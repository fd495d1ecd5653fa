// `mhla verify`: every form against the dense oracle on this machine.
#include "mhla/verify/verify.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "cli/table.h"

namespace mhla::cli {
namespace {

struct Arguments {
  verify::Options options;
  bool json = false, list = false;
};

// JSON has no infinity: such an error is null.
nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

nlohmann::json to_json(const verify::Report& report) {
  nlohmann::json forms = nlohmann::json::array(), failures = nlohmann::json::array();
  for (const verify::FormResult& f : report.forms) {
    forms.push_back({{"form", f.form},
                     {"implementation", f.implementation},
                     {"dtype", f.dtype},
                     {"cases", f.cases},
                     {"failed", f.failed},
                     {"worst_error", number(f.worst_error)},
                     {"tolerance", number(f.tolerance)},
                     {"share", number(f.ratio)},
                     {"mean_share", number(f.mean_ratio)},
                     {"worst_case", f.worst_case},
                     {"worst_tensor", f.worst_tensor}});
  }
  for (const verify::Failure& f : report.failures) {
    failures.push_back({{"case", f.name},
                        {"form", f.form},
                        {"implementation", f.implementation},
                        {"reason", f.reason},
                        {"share", number(f.ratio)},
                        {"seed", f.seed}});
  }
  return {{"cases", report.cases},
          {"runs", report.runs},
          {"failed", report.failed},
          {"unserved", report.unserved},
          {"too_heavy", report.too_heavy},
          {"seconds", report.seconds},
          {"forms", forms},
          {"failures", failures}};
}

// "3.1e-16  12%": the worst error, and how much of its tolerance it used.
std::string cell(const verify::FormResult& f) {
  if (f.failed > 0) return "FAILED " + std::to_string(f.failed) + "/" + std::to_string(f.cases);
  char text[32];
  std::snprintf(text, sizeof text, "%.1e %3.0f%%", f.worst_error, 100 * f.ratio);
  return text;
}

void print_table(const verify::Report& report) {
  const std::vector<std::string> dtypes = {"f64", "f32", "bf16", "f16"};
  std::map<std::string, std::map<std::string, std::map<std::string, verify::FormResult>>> tree;
  for (const verify::FormResult& f : report.forms) tree[f.implementation][f.form][f.dtype] = f;
  for (const auto& [implementation, forms] : tree) {
    Table table;
    table.row({implementation, "cases", "f64", "f32", "bf16", "f16"});
    for (const auto& [form, by_dtype] : forms) {
      std::size_t cases = 0;
      for (const auto& entry : by_dtype) cases += entry.second.cases;
      std::vector<std::string> row = {"  " + form, std::to_string(cases)};
      for (const std::string& dtype : dtypes) {
        const auto found = by_dtype.find(dtype);
        row.push_back(found == by_dtype.end() ? "-" : cell(found->second));
      }
      table.row(row);
    }
    std::cout << table.text() << "\n";
  }
}

void print_summary(const verify::Report& report) {
  constexpr std::size_t kShown = 10;  // a broken kernel fails hundreds
  for (std::size_t i = 0; i < report.failures.size() && i < kShown; ++i) {
    const verify::Failure& f = report.failures[i];
    char share[48];
    std::snprintf(share, sizeof share, "%.0f%% of the tolerance", 100 * f.ratio);
    std::cout << "failed: " << f.name << " on " << f.implementation << ": " << f.reason << " ("
              << share << ", seed " << f.seed << ")\n";
  }
  if (report.failures.size() > kShown) {
    std::cout << "failed: ... and " << report.failures.size() - kShown << " more, see --json\n";
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", report.seconds);
  std::cout
      << "Each cell: the worst error against the f64 oracle, and its share of the tolerance.\n"
      << report.cases << " cases, " << report.runs << " runs, " << report.failed << " failed, "
      << seconds << "\n";
  if (report.unserved > 0) std::cout << report.unserved << " cases that nothing here serves\n";
  if (report.too_heavy > 0) {
    std::cout << report.too_heavy << " large cases left out on the CPU (--all runs them)\n";
  }
}

void show_progress(std::size_t done, std::size_t total) {
  if (done % 10 == 0 || done == total) std::fprintf(stderr, "\rverify %zu/%zu", done, total);
  if (done == total) std::fprintf(stderr, "\r\033[K");
}

void run_verify(Arguments arguments) {
  verify::Options& options = arguments.options;
  if (options.seeds < 1) fail("verify", "--seeds: expected 1 or more, got ", options.seeds);
  const std::vector<verify::Case> selected = verify::selected_cases(options);
  if (selected.empty()) fail("verify", "no case contains '", options.filter, "': try --list");
  if (arguments.list) {
    nlohmann::json names = nlohmann::json::array();
    for (const verify::Case& c : selected) names.push_back({{"case", c.name}, {"seed", c.seed}});
    if (arguments.json) {
      std::cout << names.dump(2) << "\n";
    } else {
      for (const verify::Case& c : selected) std::cout << c.name << "\n";
    }
    return;
  }
  if (isatty(STDERR_FILENO)) options.progress = show_progress;
  const verify::Report report = verify::verify(options);
  if (report.cases == 0) {
    fail(ErrorCode::unsupported, "verify", "nothing on this machine serves a selected case");
  }
  if (arguments.json) {
    std::cout << to_json(report).dump(2) << "\n";
  } else {
    print_table(report);
    print_summary(report);
  }
  if (report.failed > 0) throw Failed{};
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "verify", "Check every form of the operator against a dense f64 oracle");
  auto arguments = std::make_shared<Arguments>();
  verify::Options& options = arguments->options;
  command
      ->add_option("--implementation", options.implementation,
                   "Only this one (see mhla info), or 'state' for the streaming form")
      ->type_name("NAME");
  command->add_option("--filter", options.filter, "Only cases whose name or form contains TEXT")
      ->type_name("TEXT");
  command->add_option("--seed", options.seed, "Values of this seed, that of a failure for example")
      ->type_name("NUMBER");
  command
      ->add_option("--seeds", options.seeds, "So many values of every case, its own seed's first")
      ->type_name("COUNT");
  command->add_option("--threads", options.threads, "Cases at a time; 0 takes all cores")
      ->type_name("COUNT")
      ->check(not_negative());
  command->add_flag("--all", options.heavy, "Large cases on the CPU too, not only on accelerators");
  command->add_flag("--list", arguments->list, "Print the names of the cases and exit");
  command->add_flag("--json", arguments->json, "Print one JSON document");
  command->footer("Exit code 1 when a case failed.");
  command->callback([arguments] { run_verify(*arguments); });
}

}  // namespace mhla::cli
