// The configuration of a run: YAML, overridden by `key=value` words, read by typed getters.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mhla::io {

// Values under dotted names: "train.lr". A value is a text or a list of texts; what it means is
// known to who reads it. Reading a key that is absent adds its default, so that after everybody has
// read, the configuration is the resolved one; finish() then refuses what nobody asked for.
class Config {
 public:
  struct Value {
    std::vector<std::string> items;
    bool list = false;
    std::string where{};  // "configs/deit-t.yaml:12", "the command line"; empty: a default
    bool known = false;   // somebody read it
  };

  // A YAML file. `extends: other.yaml` (relative to the file) is read before it. Throws with file
  // and line. Without yaml-cpp in the build: ErrorCode::unsupported.
  static Config load(const std::string& path);
  static Config parse(const std::string& text, const std::string& name);

  void set(const std::string& path, Value value);  // the last one counts
  void override_with(const std::string& word);     // "train.lr=1e-3", "model.blocks=[4, 4]"
  void merge(const Config& over);
  void erase(const std::string& path) { values_.erase(path); }

  bool has(const std::string& path) const { return values_.contains(path); }
  const std::map<std::string, Value>& values() const { return values_; }

  // Each reads into the variable, or records its present value as the default.
  void read(const std::string& path, bool& value);
  void read(const std::string& path, std::int64_t& value);
  void read(const std::string& path, double& value);
  void read(const std::string& path, std::string& value);
  void read(const std::string& path, std::vector<std::int64_t>& value);
  void read(const std::string& path, std::vector<double>& value);
  void read(const std::string& path, std::vector<std::string>& value);
  void read(const std::string& path, std::string& value,
            std::initializer_list<const char*> choices);

  // Everything below a section that another parser reads, as (name, text); lists are joined by 'x'.
  std::vector<std::pair<std::string, std::string>> take(const std::string& section);

  // Throws for the first key that nobody read, naming the nearest one that somebody did.
  void finish() const;

  // What parse() reads back as the same configuration.
  std::string to_yaml() const;

  // " (configs/deit-t.yaml:12)" for messages; empty for a default.
  std::string origin(const std::string& path) const;

 private:
  Value* find(const std::string& path);
  template <typename Number>
  void read_list(const std::string& path, std::vector<Number>& value);

  std::map<std::string, Value> values_;
};

// Reads the fields of a struct that lists them: `options.fields(section)`.
class ConfigSection {
 public:
  ConfigSection(Config& config, std::string section)
      : config_(config), section_(std::move(section)) {}
  template <typename Value>
  void operator()(const char* key, Value& value) {
    config_.read(section_ + "." + key, value);
  }
  void operator()(const char* key, std::string& value, std::initializer_list<const char*> choices) {
    config_.read(section_ + "." + key, value, choices);
  }

 private:
  Config& config_;
  std::string section_;
};

}  // namespace mhla::io
