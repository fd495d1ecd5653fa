// log.jsonl, line by line.
#include "io/run_history.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/file_bytes.h"
#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

using Json = nlohmann::ordered_json;  // the order of a line is the order of the task

bool is_entry(const Json& line) {
  return line.is_object() && line.contains("kind") && line["kind"].is_string() &&
         line.contains("step") && line["step"].is_number_integer() && line.contains("epoch") &&
         line["epoch"].is_number();
}

}  // namespace

RunHistory read_run(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder) / "log.jsonl";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    fail(ErrorCode::io, "compare", "'", folder, "' is no run: there is no file ", path.string());
  }
  return parse_run(folder, FileBytes::map(path.string())->bytes());
}

RunHistory parse_run(const std::string& folder, std::string_view log) {
  RunHistory history;
  // A trailing slash leaves the last part empty.
  const auto absolute = std::filesystem::absolute(folder).lexically_normal();
  history.name = (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
  for (const std::string_view text : split(log, '\n')) {
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!is_entry(line)) continue;
    const bool evaluation = line["kind"] == "eval";
    history.steps = std::max(history.steps, line["step"].get<std::int64_t>());
    for (const auto& [key, value] : line.items()) {
      if (!value.is_number() || key == "step" || key == "epoch") continue;
      auto& curves = evaluation ? history.eval : history.train;
      if (evaluation && !curves.contains(key)) history.eval_order.push_back(key);
      Curve& curve = curves[key];
      curve.name = history.name;
      curve.points.emplace_back(line["epoch"].get<double>(), value.get<double>());
    }
  }
  return history;
}

}  // namespace mhla::io
