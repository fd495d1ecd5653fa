// What a run wrote into its log.jsonl: curves by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/chart.h"

namespace mhla::io {

struct RunHistory {
  std::string name;                          // of the run's folder
  std::int64_t steps = 0;                    // the last one logged
  std::vector<std::string> eval_order;       // as the task ranks them
  std::map<std::string, Curve> train, eval;  // by what is measured, over epochs
};

// Lines that are no JSON object with kind, step and epoch are passed over: a crash may cut one off.
// Throws Error(io) where `folder` is no run.
RunHistory read_run(const std::string& folder);
// The same for the text of a log.
RunHistory parse_run(const std::string& folder, std::string_view log);

}  // namespace mhla::io
