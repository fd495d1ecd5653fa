// `mhla info`: this build, this machine, and which implementation serves which case; a
// checkpoint; a network.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/info_checkpoint.h"
#include "cli/machine.h"
#include "cli/model_info.h"
#include "cli/program.h"
#include "cli/table.h"
#include "mhla/core/device_memory.h"
#include "mhla/mhla.h"

namespace mhla::cli {
namespace {

struct Row {
  std::string group, value;
  Problem problem;
};

Problem base() { return {.heads = 4, .layout = BlockLayout::sequence(256, {.block = {64}})}; }

template <typename Change>
Row row(const std::string& group, const std::string& value, Change change) {
  Problem problem = base();
  change(problem);
  return {group, value, problem};
}

// One change at a time from a plain problem, except masks and normalisers, which are combined.
std::vector<Row> rows() {
  std::vector<Row> all;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row("dtype", name(dtype), [&](Problem& p) { p.dtype = dtype; }));
  }
  for (const Mask mask : {Mask::none, Mask::causal, Mask::block_causal}) {
    for (const Normalizer normalizer :
         {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
      all.push_back(
          row("mask/normalizer", std::string(name(mask)) + "/" + name(normalizer), [&](Problem& p) {
            p.mask = mask;
            p.normalizer = normalizer;
          }));
    }
  }
  for (const FeatureMap map :
       {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1, FeatureMap::identity}) {
    all.push_back(row("feature_map", name(map), [&](Problem& p) { p.feature_map = map; }));
  }
  const auto layout = [&](const char* label, const BlockLayout& value) {
    all.push_back(row("layout", label, [&](Problem& p) { p.layout = value; }));
  };
  using L = BlockLayout;
  layout("sequence", L::sequence(256, {.block = {64}}));
  layout("sequence, ragged tail", L::sequence(250, {.block = {64}}));
  layout("2-D grid", L::grid({16, 16}, {.block = {4, 4}}));
  layout("2-D grid, ragged", L::grid({14, 14}, {.block = {4, 4}}));
  layout("3-D grid", L::grid({4, 8, 8}, {.block = {2, 4, 4}}));
  layout("packed sequences", L::packed({0, 100, 256}, {.block = {64}}));
  layout("packed grids", L::packed_grids({{8, 8}, {8, 6}}, {.block = {4, 4}}));
  all.push_back(row("also", "cross-attention",
                    [](Problem& p) { p.layout_k = L::sequence(77, {.block = {16}}); }));
  all.push_back(
      row("also", "separate denominator", [](Problem& p) { p.separate_denominator = true; }));
  all.push_back(row("also", "mixing per head", [](Problem& p) { p.mixing_per_head = true; }));
  all.push_back(row("also", "dk != dv", [](Problem& p) { p.dv = 128; }));
  all.push_back(row("also", "odd head size", [](Problem& p) { p.dk = p.dv = 40; }));
  return all;
}

bool serves(const std::string& implementation, Problem problem) {
  if (implementation.starts_with("cuda.")) problem.device = Device::cuda(0);
  try {
    plan(problem, {.implementation = implementation});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// What one implementation serves. Rows that do not speak of a dtype take one that it has.
struct Column {
  std::string implementation;
  DType dtype = DType::f32;
  std::vector<bool> served;
};

Column column(const std::string& implementation, const std::vector<Row>& rows) {
  Column result{.implementation = implementation, .dtype = DType::f32, .served = {}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Problem problem = base();
    problem.dtype = dtype;
    if (!serves(implementation, problem)) continue;
    result.dtype = dtype;
    break;
  }
  for (const Row& r : rows) {
    Problem problem = r.problem;
    if (r.group != "dtype") problem.dtype = result.dtype;
    result.served.push_back(serves(implementation, problem));
  }
  return result;
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text.empty() ? "none" : text;
}

void print_json(const std::vector<Row>& rows, const std::vector<Column>& columns) {
  nlohmann::json support = nlohmann::json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    nlohmann::json served = nlohmann::json::array();
    for (const Column& c : columns) {
      if (c.served[i]) served.push_back(c.implementation);
    }
    support.push_back({{"group", rows[i].group}, {"case", rows[i].value}, {"served_by", served}});
  }
  const nlohmann::json document = {
      {"version", version()},
      {"compiler", compiler()},
      {"cpu", {{"model", cpu_model()}, {"features", cpu_features()}, {"threads", cpu_threads()}}},
      {"cuda_devices", cuda_devices()},
      {"implementations", implementations()},
      {"support", support}};
  std::cout << document.dump(2) << "\n";
}

void print_text(const std::vector<Row>& rows, const std::vector<Column>& columns) {
  Table machine;
  machine.row({"version", version()});
  machine.row({"compiler", compiler()});
  machine.row({"cpu", cpu_model() + ", " + std::to_string(cpu_threads()) + " threads"});
  machine.row({"cpu features", join(cpu_features(), " ")});
  machine.row({"cuda devices", join(cuda_devices(), "; ")});
  machine.row({"implementations", join(implementations(), ", ")});
  Table table;
  std::vector<std::string> head = {"case", ""};
  for (const Column& c : columns) head.push_back(c.implementation);
  table.row(head);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool first = i == 0 || rows[i].group != rows[i - 1].group;
    std::vector<std::string> line = {first ? rows[i].group : "", rows[i].value};
    for (const Column& c : columns) line.emplace_back(c.served[i] ? "yes" : "-");
    table.row(line);
  }
  std::cout << machine.text() << "\n" << table.text();
}

void info(bool json) {
  const std::vector<Row> all = rows();
  std::vector<Column> columns;
  for (const std::string& name : implementations()) columns.push_back(column(name, all));
  json ? print_json(all, columns) : print_text(all, columns);
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info",
                                         "Print version, machine, and which implementation serves "
                                         "what; or what a file or network has");
  struct Flags {
    bool json = false;
    std::string file, model;
    std::vector<std::string> options;
  };
  auto flags = std::make_shared<Flags>();
  CLI::Option* file = command
                          ->add_option("file", flags->file,
                                       "A checkpoint: safetensors, its index or folder, .pth")
                          ->type_name("FILE");
  command->add_flag("--json", flags->json, "Print one JSON document");
  CLI::Option* model = command
                           ->add_option(
                               "--model", flags->model,
                               "Describe a network: deit-t, dit-s/2, lm-340m ...; 'all' lists them")
                           ->type_name("NAME")
                           ->excludes(file);
  command
      ->add_option("--options", flags->options,
                   "Of the network: attention=softmax image_size=512 attention.preset=paper")
      ->type_name("KEY=VALUE...")
      ->needs(model);
  command->callback([flags] {
    if (!flags->model.empty()) return model_info(flags->model, flags->options, flags->json);
    flags->file.empty() ? info(flags->json) : info_checkpoint(flags->file, flags->json);
  });
}

}  // namespace mhla::cli
