// Configurations out of YAML text, by yaml-cpp.
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <string>

#include "io/config.h"
#include "io/file_bytes.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr const char* kWhere = "config";
constexpr int kMaxDepth = 16;  // of nested maps, and of files that extend another

std::string place(const std::string& name, const YAML::Mark& mark) {
  return mark.is_null() ? name : name + ":" + std::to_string(mark.line + 1);
}

void flatten(const YAML::Node& node, const std::string& path, const std::string& name, int depth,
             Config& config) {
  const std::string where = place(name, node.Mark());
  if (depth > kMaxDepth) fail(kWhere, path, ": nested too deep (", where, ")");
  if (node.IsMap()) {
    for (const auto& item : node) {
      if (!item.first.IsScalar()) fail(kWhere, "a key must be a plain name (", where, ")");
      const std::string key = (path.empty() ? "" : path + ".") + item.first.Scalar();
      if (config.has(key)) {
        fail(kWhere, key, ": given twice (", place(name, item.first.Mark()), ")");
      }
      flatten(item.second, key, name, depth + 1, config);
    }
    return;
  }
  if (path.empty()) {
    if (node.IsNull()) return;  // an empty file
    fail(kWhere, "expected `key: value` lines (", where, ")");
  }
  Config::Value value{.items = {}, .list = node.IsSequence(), .where = where};
  if (node.IsScalar()) value.items.push_back(node.Scalar());
  if (node.IsNull()) value.items.emplace_back();
  if (node.IsSequence()) {
    for (const auto& item : node) {
      if (!item.IsScalar()) fail(kWhere, path, ": a list holds plain values only (", where, ")");
      value.items.push_back(item.Scalar());
    }
  }
  config.set(path, std::move(value));
}

Config load_at(const std::string& path, int depth) {
  if (depth > kMaxDepth) fail(kWhere, "'", path, "': extends itself");
  const FilePointer file = FileBytes::map(path);
  Config config = Config::parse(std::string(file->bytes()), path);
  const auto base = config.values().find("extends");
  if (base == config.values().end()) return config;
  namespace fs = std::filesystem;
  Config result = load_at((fs::path(path).parent_path() / base->second.items.at(0)).string(),
                          depth + 1);
  config.erase("extends");
  result.merge(config);
  return result;
}

}  // namespace

Config Config::parse(const std::string& text, const std::string& name) {
  Config config;
  try {
    flatten(YAML::Load(text), "", name, 0, config);
  } catch (const YAML::Exception& error) {
    fail(kWhere, error.msg, " (", place(name, error.mark), ")");
  }
  return config;
}

Config Config::load(const std::string& path) { return load_at(path, 0); }

}  // namespace mhla::io
