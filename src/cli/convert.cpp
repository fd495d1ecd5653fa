// `mhla convert`: checkpoints of other formats, precision, names and resolution.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "cli/table.h"
#include "cli/torch_library.h"
#include "io/checkpoint.h"
#include "io/precision.h"
#include "io/safetensors.h"
#include "mhla/core/text.h"
#include "models/convert.h"

namespace mhla::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kWhere = "convert";

struct Flags {
  std::string in, out, section, model, package, dtype, file_size;
  std::vector<std::string> options;
  bool partial = false, json = false;

  bool needs_network() const { return !model.empty() || !package.empty() || !options.empty(); }
};

// "5GB", "512MiB", "4096": bytes; empty: 0.
std::uint64_t parse_size(const std::string& text) {
  constexpr std::pair<const char*, std::uint64_t> kUnits[] = {{"KiB", 1ull << 10},
                                                              {"MiB", 1ull << 20},
                                                              {"GiB", 1ull << 30},
                                                              {"KB", 1000},
                                                              {"MB", 1000'000},
                                                              {"GB", 1000'000'000},
                                                              {"B", 1}};
  if (text.empty()) return 0;
  std::string_view number = text;
  std::uint64_t unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!text.ends_with(name)) continue;
    number.remove_suffix(std::string_view(name).size());
    unit = bytes;
    break;
  }
  const auto value = parse_number<double>(number);
  if (!value || !(*value * static_cast<double>(unit) >= 1) || *value > 1e12) {
    fail(kWhere, "--file_size: expected a size such as 5GB or 512MiB, got '", text, "'");
  }
  return static_cast<std::uint64_t>(*value * static_cast<double>(unit));
}

// NOTE: the library says what a folder's file is called where a network is in between.
std::string plain_target(const std::string& out) {
  std::error_code ignored;
  return fs::is_directory(out, ignored) ? (fs::path(out) / "model.safetensors").string() : out;
}

void check_target(const std::string& out) {
  std::error_code ignored;
  if (fs::is_directory(out, ignored)) return;
  if (out.ends_with('/')) {
    fail(ErrorCode::io, kWhere, "OUT: there is no folder '", out, "': create it first");
  }
  const std::string extension = fs::path(out).extension().string();
  if (extension == ".safetensors") return;
  fail(kWhere, "OUT: only safetensors files are written, got '", out, "': try ",
       fs::path(out).replace_extension(".safetensors").string());
}

// What belongs to sections that are left out does not go into the metadata of the rest.
io::Metadata kept_metadata(const io::Checkpoint& whole, const io::Checkpoint& part) {
  io::Metadata kept;
  std::vector<std::string> tops;
  if (part.tensors().size() < whole.tensors().size()) {
    for (const std::string& section : whole.sections()) {
      tops.push_back(section.substr(0, section.find('.')) + ".");
    }
  }
  for (const auto& [key, value] : part.metadata()) {
    bool left_out = !io::is_utf8(key) || !io::is_utf8(value);
    for (const std::string& top : tops) left_out = left_out || key.starts_with(top);
    if (!left_out) kept.emplace(key, value);
  }
  kept.emplace("format", "pt");  // transformers refuses files without it
  return kept;
}

// The file alone: no network, no LibTorch.
json convert_file(const Flags& flags) {
  const io::Checkpoint whole = io::Checkpoint::open(flags.in);
  const io::Checkpoint part = flags.section.empty()    ? whole.weights()
                              : flags.section == "all" ? whole
                                                       : whole.section(flags.section);
  io::SaveOptions save;
  save.metadata = kept_metadata(whole, part);
  save.max_file_bytes = parse_size(flags.file_size);
  if (!flags.dtype.empty()) save.precision = io::parse_precision(flags.dtype);
  save.keep = whole.file_names();
  const io::Saved saved = io::write_safetensors(plain_target(flags.out), part.tensors(), save);
  return {{"in", part.path()},
          {"format", part.format()},
          {"files", saved.files},
          {"dtype", save.precision ? json(io::name(*save.precision)) : json()},
          {"tensors", saved.tensors},
          {"bytes", saved.bytes},
          {"converted", saved.converted},
          {"overflowed", saved.overflowed},
          {"notes", part.notes()}};
}

// A report of several lines goes before the one line of the error.
[[noreturn]] void refuse(int code, const std::string& message) {
  const std::size_t end = message.find('\n');
  if (end == std::string::npos) throw Error(static_cast<ErrorCode>(code - 1), message);
  std::cerr << message.substr(end + 1);
  throw Error(ErrorCode::corrupt_data, message.substr(0, end) +
                                           "; --model and --options say what it is, --partial "
                                           "goes on without what is missing");
}

json convert_network(const Flags& flags) {
  std::string words;
  for (const std::string& option : flags.options) words += (words.empty() ? "" : " ") + option;
  const mhla_conversion request{.in = flags.in.c_str(),
                                .out = flags.out.c_str(),
                                .section = flags.section.c_str(),
                                .model = flags.model.c_str(),
                                .options = words.c_str(),
                                .package = flags.package.c_str(),
                                .dtype = flags.dtype.c_str(),
                                .max_file_bytes = parse_size(flags.file_size),
                                .partial = flags.partial};
  if (flags.section == "all") {
    fail(kWhere, "--section all is for files alone: a network is read from one section");
  }
  if (!flags.dtype.empty()) io::parse_precision(flags.dtype);
  const auto convert = reinterpret_cast<decltype(&mhla_model_convert)>(
      torch_function("mhla_model_convert"));
  char* text = nullptr;
  const int failed = convert(&request, &text);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  if (failed) refuse(failed, text);
  return json::parse(text);
}

void print_text(const json& done) {
  Table table;
  const auto word = [&](const char* key) { return done.at(key).get<std::string>(); };
  table.row({"read", word("in") + " (" + word("format") + ")"});
  if (done.contains("model")) {
    table.row({"network", word("model")});
    table.row({"options", word("options")});
    table.row({"names", word("names")});
  }
  std::string types = done.at("dtype").is_null() ? "as in the file" : word("dtype");
  if (done.at("overflowed") != 0) {
    types += ", WARNING: " + done.at("overflowed").dump() + " elements became infinite";
  }
  table.row({"precision", types});
  bool first = true;
  for (const json& file : done.at("files")) {
    table.row({first ? "wrote" : "", file.get<std::string>()});
    first = false;
  }
  table.row({"", done.at("tensors").dump() + " tensors, " + done.at("bytes").dump() + " bytes"});
  if (!done.contains("text")) {
    for (const json& note : done.at("notes")) table.row({"note", note.get<std::string>()});
  }
  std::cout << table.text();
  if (done.contains("text")) std::cout << "\n" << word("text");
  if (!done.contains("left_out") || done.at("left_out").empty()) return;
  const json& names = done.at("left_out");
  constexpr std::size_t kShown = 20;  // as the report does
  std::cout << "without a place in " << word("names") << " (" << names.size() << "):\n";
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    std::cout << "  '" << names[i].get<std::string>() << "'\n";
  }
  if (names.size() > kShown) std::cout << "  and " << names.size() - kShown << " more\n";
}

void convert(const Flags& flags) {
  check_target(flags.out);
  json done = flags.needs_network() ? convert_network(flags) : convert_file(flags);
  if (!flags.json) return print_text(done);
  done.erase("text");
  std::cout << done.dump(2, ' ', false, json::error_handler_t::replace) << "\n";
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "convert", "Convert a checkpoint: format, precision, names of other packages, resolution");
  auto flags = std::make_shared<Flags>();
  command->add_option("in", flags->in, "safetensors, its index or folder, .pth")
      ->required()
      ->type_name("IN");
  command->add_option("out", flags->out, "A .safetensors file, or a folder that exists")
      ->required()
      ->type_name("OUT");
  command->add_option("--dtype", flags->dtype, "Round floating tensors to this")
      ->type_name("f32|bf16|f16|f64");
  command
      ->add_option("--model", flags->model,
                   "Read it as this network; default: what a file written by mhla says it is")
      ->type_name("NAME");
  command
      ->add_option("--options", flags->options,
                   "Of the network: image_size=512 attention=mhla; positions and mixing matrices "
                   "of another size are fitted")
      ->type_name("KEY=VALUE...");
  command->add_option("--to", flags->package, "Write the names of this package; default: upstream")
      ->type_name("upstream|timm|facebook|diffusers|transformers");
  command
      ->add_option(
          "--section", flags->section,
          "Of a training checkpoint: ema, model ...; default: its weights; 'all': as it is")
      ->type_name("NAME");
  command->add_option("--file_size", flags->file_size, "Split into files of at most this: 5GB")
      ->type_name("SIZE");
  command->add_flag(
      "--partial", flags->partial,
      "Go on where tensors are missing, left over or without a place; they are listed");
  command->add_flag("--json", flags->json, "Print one JSON document");
  command->footer(
      "Examples: mhla convert model.pth model.safetensors --dtype bf16\n"
      "          mhla convert deit.pth mhla.safetensors --model deit-t --options image_size=384\n"
      "          mhla convert lm.safetensors folder --model lm-340m --options attention=softmax "
      "--to transformers");
  command->callback([flags] { convert(*flags); });
}

}  // namespace mhla::cli
