// `mhla info FILE`: what a checkpoint file holds, without loading it.
#include "cli/info_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/table.h"
#include "io/checkpoint.h"

namespace mhla::cli {
namespace {

using nlohmann::json;

// A file must not be able to send commands to the terminal.
std::string printable(const std::string& text) {
  const bool plain = std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
  return plain && text.size() <= 200 ? text : io::shown(text);
}

std::string with_unit(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::int64_t elements(const io::Checkpoint& file) {
  std::int64_t sum = 0;
  for (const io::Tensor& tensor : file.tensors()) sum += tensor.size();
  return sum;
}

std::string types(const io::Checkpoint& file) {
  std::map<std::string, std::size_t> counts;
  for (const io::Tensor& tensor : file.tensors()) ++counts[io::name(tensor.type)];
  std::string text;
  for (const auto& [type, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + type;
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(words.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + printable(words[i]);
  }
  return words.size() > kShown ? text + ", ..." : text;
}

void print_text(const io::Checkpoint& file) {
  Table head;
  head.row({"file", file.path()});
  head.row({"format", file.format()});
  head.row({"tensors", std::to_string(file.tensors().size()) +
                           (file.tensors().empty() ? "" : " (" + types(file) + ")")});
  head.row({"elements", std::to_string(elements(file))});
  head.row({"bytes", std::to_string(file.bytes()) +
                         (file.bytes() < 1024 ? "" : " (" + with_unit(file.bytes()) + ")")});
  const std::vector<std::string> sections = file.sections();
  if (!sections.empty()) head.row({"sections", joined(sections)});
  for (const std::string& note : file.notes()) head.row({"note", note});
  std::cout << head.text();
  if (!file.metadata().empty()) {
    Table metadata;
    for (const auto& [key, value] : file.metadata()) {
      metadata.row({"  " + printable(key), printable(value)});
    }
    std::cout << "\nmetadata\n" << metadata.text();
  }
  if (file.tensors().empty()) return;
  Table table;
  table.row({"tensor", "dtype", "shape", "bytes"});
  for (const io::Tensor& tensor : file.tensors()) {
    table.row({printable(tensor.name), io::name(tensor.type), io::to_string(tensor.shape),
               std::to_string(tensor.bytes())});
  }
  std::cout << "\n" << table.text();
}

void print_json(const io::Checkpoint& file) {
  json tensors = json::array();
  for (const io::Tensor& tensor : file.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"section", tensor.section},
                       {"dtype", io::name(tensor.type)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes()}});
  }
  const json document = {{"file", file.path()},         {"format", file.format()},
                         {"elements", elements(file)},  {"bytes", file.bytes()},
                         {"metadata", file.metadata()}, {"sections", file.sections()},
                         {"notes", file.notes()},       {"tensors", std::move(tensors)}};
  // The path is whatever was typed; everything else is known to be UTF-8.
  std::cout << document.dump(2, ' ', false, json::error_handler_t::replace) << "\n";
}

}  // namespace

void info_checkpoint(const std::string& path, bool json) {
  const io::Checkpoint file = io::Checkpoint::open(path);
  json ? print_json(file) : print_text(file);
}

}  // namespace mhla::cli
