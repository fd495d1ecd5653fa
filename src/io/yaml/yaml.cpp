// Configurations out of YAML text, by yaml-cpp.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "io/config.h"
#include "io/file_bytes.h"
#include "io/tensor.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr const char* kWhere = "config";
constexpr int kMaxDepth = 16;  // of nested maps, and of files that extend another
// Names that refer to maps of names that refer to maps grow a small file without end.
constexpr std::size_t kMaxKeys = 10000;

std::string place(const std::string& name, const YAML::Mark& mark) {
  return mark.is_null() ? name : name + ":" + std::to_string(mark.line + 1);
}

class Flattener {
 public:
  Flattener(const std::string& name, Config& config) : name_(name), config_(config) {}

  void add(const YAML::Node& node, const std::string& path = "", int depth = 0) {
    const std::string where = place(name_, node.Mark());
    if (depth > kMaxDepth) fail(kWhere, path, ": nested too deep (", where, ")");
    if (++seen_ > kMaxKeys) fail(kWhere, "more than ", kMaxKeys, " keys (", name_, ")");
    if (node.IsMap()) return add_map(node, path, where, depth);
    if (path.empty()) {
      if (node.IsNull()) return;  // an empty file
      fail(kWhere, "expected `key: value` lines (", where, ")");
    }
    Config::Value value{.items = {}, .list = node.IsSequence(), .where = where};
    if (node.IsScalar()) value.items.push_back(text_of(node));
    if (node.IsNull()) value.items.emplace_back();
    if (node.IsSequence()) {
      for (const auto& item : node) {
        if (!item.IsScalar()) fail(kWhere, path, ": a list holds plain values only (", where, ")");
        value.items.push_back(text_of(item));
      }
    }
    config_.set(path, std::move(value));
  }

 private:
  // NOTE: yaml-cpp makes single bytes of the escapes \N and \_, which no UTF-8 text has.
  std::string text_of(const YAML::Node& scalar) const {
    if (!is_utf8(scalar.Scalar())) {
      fail(kWhere, "the escapes \\N and \\_ are not known (", place(name_, scalar.Mark()), ")");
    }
    return scalar.Scalar();
  }

  void add_map(const YAML::Node& node, const std::string& path, const std::string& where,
               int depth) {
    for (const auto& item : node) {
      if (!item.first.IsScalar()) fail(kWhere, "a key must be a plain name (", where, ")");
      const std::string key = (path.empty() ? "" : path + ".") + text_of(item.first);
      if (config_.has(key)) {
        fail(kWhere, key, ": given twice (", place(name_, item.first.Mark()), ")");
      }
      add(item.second, key, depth + 1);
    }
  }

  const std::string& name_;
  Config& config_;
  std::size_t seen_ = 0;
};

class Ignore : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// NOTE: YAML::LoadAll never ends for a text such as ",".
bool has_more_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Ignore ignore;
  return parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore);
}

Config load_at(const std::string& path, int depth) {
  if (depth > kMaxDepth) fail(kWhere, "'", path, "': extends itself");
  const FilePointer file = FileBytes::map(path);
  Config config = Config::parse(std::string(file->bytes()), path);
  const auto base = config.values().find("extends");
  if (base == config.values().end()) return config;
  namespace fs = std::filesystem;
  if (base->second.list || base->second.items[0].empty()) {
    fail(kWhere, "extends: expected the name of one file (", base->second.where, ")");
  }
  Config result = load_at((fs::path(path).parent_path() / base->second.items[0]).string(),
                          depth + 1);
  config.erase("extends");
  result.merge(config);
  return result;
}

}  // namespace

Config Config::parse(const std::string& text, const std::string& name) {
  if (!is_utf8(text) || text.find('\0') != std::string::npos) {
    fail(kWhere, "expected UTF-8 text (", name, ")");
  }
  Config config;
  try {
    if (has_more_documents(text)) {
      fail(kWhere, "expected one document, not several parted by '---' (", name, ")");
    }
    Flattener(name, config).add(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    fail(kWhere, error.msg, " (", place(name, error.mark), ")");
  }
  return config;
}

Config Config::load(const std::string& path) { return load_at(path, 0); }

}  // namespace mhla::io
