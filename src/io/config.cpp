// Typed reading, overrides and printing; YAML itself is in yaml.cpp.
#include "io/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>

#include "io/tensor.h"
#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr const char* kWhere = "config";

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

std::string shown(const Config::Value& value) {
  if (!value.list) return value.items.empty() ? "" : value.items[0];
  std::string text;
  for (const std::string& item : value.items) text += (text.empty() ? "" : ", ") + item;
  return "[" + text + "]";
}

std::string text_of(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(const std::string& value) { return value; }

// A number may be written 1e3 where it is whole.
bool parse_as(const std::string& text, std::int64_t& value) {
  if (const auto number = parse_number<std::int64_t>(text)) {
    value = *number;
    return true;
  }
  const auto number = parse_number<double>(text);
  if (!number || !(std::abs(*number) < 1e15)) return false;
  value = static_cast<std::int64_t>(*number);
  return static_cast<double>(value) == *number;
}
bool parse_as(const std::string& text, double& value) {
  const auto number = parse_number<double>(text);
  if (!number || !std::isfinite(*number)) return false;  // "nan" and "inf" parse, but mean nothing
  value = *number;
  return true;
}
bool parse_as(const std::string& text, std::string& value) {
  value = text;
  return true;
}

const char* what(std::int64_t) { return "a whole number"; }
const char* what(double) { return "a number"; }
const char* what(const std::string&) { return "text"; }

}  // namespace

void Config::set(const std::string& path, Value value) { values_[path] = std::move(value); }

void Config::override_with(const std::string& word) {
  const auto equals = word.find('=');
  const std::string key = word.substr(0, equals);
  if (equals == std::string::npos || key.empty()) {
    fail(kWhere, "'", word, "': expected key=value, such as train.lr=1e-3");
  }
  const std::string text = trimmed(word.substr(equals + 1));
  // YAML has no other characters: the configuration of the run could not be read again.
  if (!is_utf8(text)) fail(kWhere, key, ": the value is not UTF-8: '", text, "'");
  Value value{.items = {text}, .list = false, .where = "the command line"};
  if (text.starts_with("[") && text.ends_with("]")) {
    value.list = true;
    value.items.clear();
    for (const std::string_view item :
         split(std::string_view(text).substr(1, text.size() - 2), ',')) {
      if (const std::string plain = trimmed(item); !plain.empty()) value.items.push_back(plain);
    }
  }
  set(key, std::move(value));
}

void Config::merge(const Config& over) {
  for (const auto& [path, value] : over.values_) values_[path] = value;
}

Config::Value* Config::find(const std::string& path) {
  const auto found = values_.find(path);
  if (found == values_.end()) return nullptr;
  found->second.known = true;
  return &found->second;
}

std::string Config::origin(const std::string& path) const {
  const auto found = values_.find(path);
  if (found == values_.end() || found->second.where.empty()) return {};
  return " (" + found->second.where + ")";
}

void Config::read(const std::string& path, bool& value) {
  const Value* found = find(path);
  if (!found) return set(path, {{value ? "true" : "false"}, false, {}, true});
  const std::string text = shown(*found);
  if (found->list || (text != "true" && text != "false")) {
    fail(kWhere, path, ": expected true or false, got '", text, "'", origin(path));
  }
  value = text == "true";
}

template <typename Number>
static void read_one(Config& config, const Config::Value& found, const std::string& path,
                     Number& value) {
  if (!found.list && !found.items.empty() && parse_as(found.items[0], value)) return;
  fail(kWhere, path, ": expected ", what(Number{}), ", got '", shown(found), "'",
       config.origin(path));
}

void Config::read(const std::string& path, std::int64_t& value) {
  const Value* found = find(path);
  found ? read_one(*this, *found, path, value) : set(path, {{text_of(value)}, false, {}, true});
}

void Config::read(const std::string& path, double& value) {
  const Value* found = find(path);
  found ? read_one(*this, *found, path, value) : set(path, {{text_of(value)}, false, {}, true});
}

void Config::read(const std::string& path, std::string& value) {
  const Value* found = find(path);
  found ? read_one(*this, *found, path, value) : set(path, {{value}, false, {}, true});
}

void Config::read(const std::string& path, std::string& value,
                  std::initializer_list<const char*> choices) {
  read(path, value);
  std::vector<std::string> known(choices.begin(), choices.end());
  if (std::ranges::find(known, value) != known.end()) return;
  std::string list;
  for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
  const std::string near = nearest(value, known);
  fail(kWhere, path, ": expected one of ", list, ", got '", value, "'",
       near.empty() ? "" : "; did you mean '" + near + "'?", origin(path));
}

template <typename Number>
void Config::read_list(const std::string& path, std::vector<Number>& value) {
  const Value* found = find(path);
  if (!found) {
    Value made{.items = {}, .list = true, .where = {}, .known = true};
    for (const Number& each : value) made.items.push_back(text_of(each));
    return set(path, std::move(made));
  }
  // One value is a list of one.
  value.clear();
  for (const std::string& item : found->items) {
    Number each{};
    if (!parse_as(item, each)) {
      fail(kWhere, path, ": expected a list of which each is ", what(Number{}), ", got '",
           shown(*found), "'", origin(path));
    }
    value.push_back(std::move(each));
  }
}

void Config::read(const std::string& path, std::vector<std::int64_t>& value) {
  read_list(path, value);
}
void Config::read(const std::string& path, std::vector<double>& value) { read_list(path, value); }
void Config::read(const std::string& path, std::vector<std::string>& value) {
  read_list(path, value);
}

std::vector<std::pair<std::string, std::string>> Config::take(const std::string& section) {
  std::vector<std::pair<std::string, std::string>> taken;
  for (auto& [path, value] : values_) {
    if (!path.starts_with(section + ".")) continue;
    value.known = true;
    std::string text;
    for (const std::string& item : value.items) text += (text.empty() ? "" : "x") + item;
    taken.emplace_back(path.substr(section.size() + 1), std::move(text));
  }
  return taken;
}

void Config::finish() const {
  std::vector<std::string> known;
  for (const auto& [path, value] : values_) {
    if (value.known) known.push_back(path);
  }
  for (const auto& [path, value] : values_) {
    if (value.known) continue;
    const std::string near = nearest(path, known);
    fail(kWhere, "unknown key '", path, "'", near.empty() ? "" : "; did you mean '" + near + "'?",
         origin(path));
  }
}

namespace {

bool is_control(char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }

// What YAML would read as something else than this text.
std::string quoted(const std::string& text) {
  constexpr std::string_view kSpecial = ":#{}[],&*!|>'\"%@`\\";
  const bool plain = !text.empty() && text.find_first_of(kSpecial) == std::string::npos &&
                     std::ranges::none_of(text, is_control) && text.front() != ' ' &&
                     text.back() != ' ' && text.front() != '-' && text.front() != '?' &&
                     text != "~" && text != "null" && text != "Null" && text != "NULL";
  // A negative number begins with '-' and is plain all the same.
  if (plain || parse_number<double>(text)) return text;
  std::string result = "\"";
  for (const char c : text) {
    if (is_control(c)) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(c));
      result += code;
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

std::string printed(const Config::Value& value) {
  if (!value.list) return quoted(value.items.empty() ? "" : value.items[0]);
  std::string text = "[";
  for (const std::string& item : value.items) text += (text.size() > 1 ? ", " : "") + quoted(item);
  return text + "]";
}

using Values = std::map<std::string, Config::Value>;

// One level: names up to the next dot. Where a name has a value and names below it, those stay
// dotted: "attention: mhla" beside "attention.preset: paper".
void print(const Values& values, const std::string& prefix, const std::string& indent,
           std::string& text) {
  std::set<std::string> done;
  for (const auto& [path, value] : values) {
    if (!path.starts_with(prefix)) continue;
    const std::string rest = path.substr(prefix.size());
    const auto dot = rest.find('.');
    const std::string head = rest.substr(0, dot);
    if (dot == std::string::npos || values.contains(prefix + head)) {
      text += indent;
      text += rest + ": " + printed(value) + "\n";
    } else if (done.insert(head).second) {
      text += indent + head + ":\n";
      print(values, prefix + head + ".", indent + "  ", text);
    }
  }
}

}  // namespace

std::string Config::to_yaml() const {
  std::string text;
  print(values_, "", "", text);
  return text;
}

}  // namespace mhla::io
