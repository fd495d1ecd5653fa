// `mhla train` and `mhla eval`.
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/launch.h"
#include "cli/program.h"
#include "cli/torch_module.h"
#include "mhla/error.h"
#include "train/run.h"

namespace mhla::cli {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<train::Training> load_training(const char* command) {
  const auto make = module_function<decltype(&mhla_make_training)>(
      "mhla_train.so", "mhla_make_training", command, command);
  return std::unique_ptr<train::Training>(make());
}

void override_all(io::Config& config, const std::vector<std::string>& words) {
  for (const std::string& word : words) config.override_with(word);
}

struct TrainFlags {
  std::string config, out;
  std::vector<std::string> overrides;
  bool resume = false, print_config = false;
  int processes = 1;
};

// A run's folder stands for the configuration in it.
std::string config_file(const std::string& path) {
  return fs::is_directory(path) ? (fs::path(path) / "config.yaml").string() : path;
}

// runs/deit-t for configs/deit-t.yaml.
std::string default_folder(const std::string& config) {
  if (fs::is_directory(config)) return config;
  return (fs::path("runs") / fs::path(config).stem()).string();
}

void run_train(const TrainFlags& flags) {
  if (flags.processes > 1 && !flags.print_config) {
    return launch(own_command_without_processes(), flags.processes);
  }
  const std::unique_ptr<train::Training> training = load_training("train");
  train::TrainCommand command{
      .config = io::Config::load(config_file(flags.config)),
      .folder = flags.out.empty() ? default_folder(flags.config) : flags.out,
      .resume = flags.resume};
  override_all(command.config, flags.overrides);
  if (flags.print_config) {
    std::cout << training->resolved(command.config);
    return;
  }
  const int signal = training->train(command);
  if (signal == 0) return;
  std::cerr << "mhla: stopped by signal " << signal << "; 'mhla train " << flags.config
            << (flags.out.empty() ? "" : " --out " + flags.out) << " --resume' goes on\n";
}

struct EvalFlags {
  std::string path, config, weights = "auto";
  std::vector<std::string> overrides;
  bool json = false;
  std::int64_t examples = 0;
};

// config.yaml of the run: beside `checkpoints`, also when one of those is named.
std::string config_of(const EvalFlags& flags) {
  if (!flags.config.empty()) return config_file(flags.config);
  for (fs::path folder = fs::absolute(flags.path).lexically_normal(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / "config.yaml")) return (folder / "config.yaml").string();
  }
  fail("eval", "'", flags.path, "' belongs to no run: give its configuration with --config");
}

void run_eval(const EvalFlags& flags) {
  if (!fs::exists(flags.path)) fail(ErrorCode::io, "eval", "'", flags.path, "' does not exist");
  train::EvalCommand command{.config = io::Config::load(config_of(flags)),
                             .path = flags.path,
                             .weights = flags.weights,
                             .json = flags.json,
                             .examples = flags.examples};
  override_all(command.config, flags.overrides);
  std::cout << load_training("eval")->evaluate(command);
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a network as a configuration says");
  const auto flags = std::make_shared<TrainFlags>();
  command->add_option("config", flags->config, "A YAML file, or the folder of a run")
      ->required()
      ->check(CLI::ExistingPath);
  command->add_option("overrides", flags->overrides, "KEY=VALUE, such as train.epochs=10")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--out", flags->out, "Folder of the run [runs/CONFIG]");
  command->add_flag("--resume", flags->resume, "Go on from the newest checkpoint of the run");
  command->add_flag("--print_config,--print-config", flags->print_config,
                    "Print the configuration with every default and exit");
  command
      ->add_option("--processes", flags->processes, "Processes of this machine that share the work")
      ->type_name("COUNT")
      ->check(CLI::Range(1, 1024));
  command->callback([flags] { run_train(*flags); });
}

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval",
                                         "Evaluate a run, a checkpoint or a file of weights");
  const auto flags = std::make_shared<EvalFlags>();
  command->add_option("path", flags->path, "A run, one of its checkpoints, or a file of weights")
      ->required();
  command->add_option("overrides", flags->overrides, "KEY=VALUE, such as data.path=FOLDER")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--config", flags->config, "A YAML file, for weights that belong to no run");
  command->add_option("--weights", flags->weights, "Which weights of a checkpoint")
      ->type_name("auto|ema|model")
      ->check(CLI::IsMember({"auto", "ema", "model"}));
  command
      ->add_option("--examples", flags->examples,
                   "Keep N pictures with their predictions in the run, for 'mhla compare'")
      ->type_name("N")
      ->check(not_negative());
  command->add_flag("--json", flags->json, "Print one JSON document, with per-class results");
  command->callback([flags] { run_eval(*flags); });
}

}  // namespace mhla::cli
