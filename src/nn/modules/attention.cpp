// The registry of attention layers, and the reader of their options.
#include "nn/modules/attention.h"

#include <algorithm>

#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::nn {
namespace {

std::map<std::string, AttentionFactory>& registry() {
  static std::map<std::string, AttentionFactory> factories;
  return factories;
}

std::string listed(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

// No size is larger: products of two or three of them still fit 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 24;

template <typename Number>
Number number_of(const char* where, const std::string& layer, const char* key,
                 std::string_view text) {
  if (const auto value = parse_number<Number>(text)) return *value;
  fail(where, layer, ": ", key, ": expected a number, got '", text, "'");
}

std::int64_t size_of(const char* where, const std::string& layer, const char* key,
                     std::string_view text, std::int64_t least) {
  const auto value = number_of<std::int64_t>(where, layer, key, text);
  if (value >= least && value <= kLargest) return value;
  fail(where, layer, ": ", key, ": expected ", least, " to ", kLargest, ", got ", value);
}

}  // namespace

std::pair<at::Tensor, AttentionState> Attention::step(const at::Tensor&, const AttentionState&) {
  fail(ErrorCode::unsupported, "attention", name(), ": only causal layers go step by step");
}

void Attention::set_grid(const std::vector<std::int64_t>&) {}

OptionReader::OptionReader(std::string layer, std::string_view text, const char* where)
    : layer_(std::move(layer)), where_(where) {
  for (const std::string_view part : split(text, ' ')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      fail(where_, layer_, ": expected key=value, got '", part, "'");
    }
    given_[std::string(part.substr(0, equals))] = part.substr(equals + 1);
  }
}

const std::string* OptionReader::take(const char* key) {
  known_.emplace_back(key);
  const auto found = given_.find(key);
  return found == given_.end() ? nullptr : &found->second;
}

// A default of 0 or -1 is a choice of its own ("none", "chosen for you"); others are counts.
void OptionReader::operator()(const char* key, std::int64_t& value) {
  const std::int64_t least = std::min<std::int64_t>(value, 1);
  if (const std::string* text = take(key)) value = size_of(where_, layer_, key, *text, least);
}

void OptionReader::operator()(const char* key, double& value) {
  const std::string* text = take(key);
  if (!text) return;
  value = number_of<double>(where_, layer_, key, *text);
  // Rates of dropout are below 1: what is left is divided by their difference to it.
  const bool rate = std::string_view(key).find("drop") != std::string_view::npos;
  if (value >= 0 && value < (rate ? 1.0 : 1e6)) return;
  fail(where_, layer_, ": ", key, ": expected 0 to ", rate ? "below 1" : "1e6", ", got ", *text);
}

void OptionReader::operator()(const char* key, std::string& value) {
  if (const std::string* text = take(key)) value = *text;
}

void OptionReader::operator()(const char* key, bool& value) {
  const std::string* text = take(key);
  if (!text) return;
  if (*text != "true" && *text != "false") {
    fail(where_, layer_, ": ", key, ": expected true or false, got '", *text, "'");
  }
  value = *text == "true";
}

void OptionReader::operator()(const char* key, std::vector<std::int64_t>& value) {
  const std::string* text = take(key);
  if (!text) return;
  value.clear();
  for (const std::string_view extent : split(*text, 'x')) {
    value.push_back(size_of(where_, layer_, key, extent, 1));
  }
}

void OptionReader::finish() const {
  for (const auto& [key, value] : given_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    fail(where_, layer_, ": unknown option '", key, "'", suggestion(key, known_),
         " (known: ", listed(known_), ")");
  }
}

AttentionName::AttentionName(std::string name, AttentionFactory factory) {
  registry().emplace(std::move(name), std::move(factory));
}

std::vector<std::string> attention_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry()) names.push_back(name);
  return names;
}

std::shared_ptr<Attention> make_attention(const std::string& name, std::string_view options) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second(options);
  const std::vector<std::string> known = attention_names();
  fail("attention", "unknown attention '", name, "'", suggestion(name, known),
       " (known: ", listed(known), ")");
}

}  // namespace mhla::nn
