// `mhla bench`: verified first, then timed, beside baselines of the same run.
#include "cli/bench.h"

#include <iostream>

#include "cli/program.h"
#include "mhla/core/text.h"

namespace mhla::cli {
namespace {

void require(const char* flag, const std::string& value, const std::vector<std::string>& known) {
  for (const std::string& word : known) {
    if (word == value) return;
  }
  const std::string hint = nearest(value, known);
  std::string list;
  for (const std::string& word : known) list += (list.empty() ? "" : ", ") + word;
  fail("bench", flag, ": unknown value '", value, "'",
       hint.empty() ? "; known: " + list : ": did you mean '" + hint + "'?");
}

void run_bench(const BenchOptions& options) {
  require("target", options.target, {"cpu", "cuda", "models"});
  require("--what", options.what, {"forward", "backward", "both"});
  if (!options.compare.empty()) require("--compare", options.compare, {"torch"});
  for (const std::string& dtype : options.dtypes) {
    require("--dtype", dtype, {"f32", "bf16", "f16"});
  }
  if (options.target == "cuda") bench_cuda(options);
  if (options.target == "models") return bench_models(options);
  bench_cpu(options);
}

std::string shape_names() {
  std::string names;
  for (const BenchShape& shape : bench_shapes()) names += (names.empty() ? "" : ", ") + shape.name;
  return names;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "bench", "Time the operator or whole networks beside baselines, after verifying");
  auto options = std::make_shared<BenchOptions>();
  command->add_option("target", options->target, "Which kernels, or whole networks")
      ->required()
      ->type_name("cpu|cuda|models");
  command->add_option("--compare", options->compare, "Baselines composed of LibTorch operations")
      ->type_name("torch");
  command
      ->add_option("--shape", options->shapes,
                   "Which: " + shape_names() +
                       " (default: all but the tiny ones); models: dit-s/2@512 "
                       "..., default: those that this machine has time for")
      ->type_name("NAME");
  command->add_option("--dtype", options->dtypes, "Default: f32 and bf16")
      ->type_name("f32|bf16|f16");
  command->add_option("--what", options->what, "backward: forward and backward together")
      ->type_name("forward|backward|both");
  command->add_option("--implementation", options->implementation, "Force one by name")
      ->type_name("NAME");
  command->add_option("--threads", options->threads, "CPU threads; 0 takes all cores")
      ->type_name("COUNT")
      ->check(not_negative());
  command->add_option("--seconds", options->seconds, "How long each contender is measured")
      ->type_name("SECONDS")
      ->check(not_negative());
  command->add_flag("--growth", options->growth,
                    "From 8k to 64k tokens in 16 blocks (a run of all shapes has it anyway)");
  command->add_flag("--slow", options->slow,
                    "Baselines of up to a minute too, run once: softmax at 31,500 tokens");
  command->add_flag("--json", options->json, "Print one JSON document");
  command->footer(
      "Example: mhla bench cpu --compare torch --shape wan --dtype f32\n"
      "Exit code 1 when a result is wrong.");
  command->callback([options] { run_bench(*options); });
}

}  // namespace mhla::cli
