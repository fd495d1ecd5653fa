// Runs side by side, as a table and as a page with their curves.
#pragma once

#include <string>
#include <vector>

#include "io/run_history.h"

namespace mhla::cli {

struct ReportedRun {
  std::string folder;
  io::RunHistory history;
};

// Throws where a folder holds no run.
std::vector<ReportedRun> read_runs(const std::vector<std::string>& folders);

// Of the rates that were logged, but for the first: it warms up.
double median_rate(const io::RunHistory& run);

// A heading, then one row a run: steps, losses, what it was evaluated by, rate.
std::vector<std::vector<std::string>> report_rows(const std::vector<ReportedRun>& runs);

// The table, curves, example predictions and configurations, in one file without references.
void write_report(const std::vector<ReportedRun>& runs, const std::string& path);

}  // namespace mhla::cli
