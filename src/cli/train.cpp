// `mhla train` and `mhla eval`.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/launch.h"
#include "cli/program.h"
#include "cli/report.h"
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

// The run as a page of its own. One process of several writes it, and a run is whole without it.
void leave_report(const std::string& folder) {
  const char* rank = std::getenv("RANK");
  if (rank != nullptr && std::string_view(rank) != "0") return;
  try {
    write_report(read_runs({folder}), (fs::path(folder) / "report.html").string());
  } catch (const Error& error) {
    std::cerr << "mhla: warning: no report: " << plain_message(error.what()) << "\n";
  }
}

void run_train(const TrainFlags& flags) {
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
  if (flags.processes > 1) {
    training->resolved(command.config);  // what is wrong with it is said once, not by each of them
    return launch(own_command_without_processes(), flags.processes);
  }
  const int signal = training->train(command);
  leave_report(command.folder);
  if (signal == 0) return;
  // The folder has the configuration with what was overridden.
  std::cerr << "mhla: stopped by signal " << signal << "; 'mhla train " << command.folder
            << " --resume' goes on\n";
}

struct EvalFlags {
  std::string path, data, config, weights = "auto";
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
  if (!flags.data.empty()) command.config.override_with("data.path=" + flags.data);
  override_all(command.config, flags.overrides);
  std::cout << load_training("eval")->evaluate(command);
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a network as a configuration says");
  const auto flags = std::make_shared<TrainFlags>();
  command->add_option("config", flags->config, "A YAML file, or the folder of a run")
      ->required()
      ->type_name("CONFIG");
  command->add_option("overrides", flags->overrides, "Such as train.epochs=10")
      ->type_name("KEY=VALUE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--out", flags->out, "Folder of the run [runs/CONFIG]")->type_name("FOLDER");
  command->add_flag("--resume", flags->resume, "Go on from the newest checkpoint of the run");
  command->add_flag("--print_config,--print-config", flags->print_config,
                    "Print the configuration with every default and exit");
  command
      ->add_option("--processes", flags->processes, "Processes of this machine that share the work")
      ->type_name("COUNT")
      ->check(CLI::Range(1, 1024).description(""));
  command->footer(
      "Example: mhla train configs/tiny.yaml model.attention=linear --out runs/linear\n"
      "Ctrl-C finishes the step and saves; --resume goes on from there.");
  command->callback([flags] { run_train(*flags); });
}

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval",
                                         "Evaluate a run, a checkpoint or a file of weights");
  const auto flags = std::make_shared<EvalFlags>();
  command->add_option("path", flags->path, "A run, one of its checkpoints, or a file of weights")
      ->required()
      ->type_name("RUN|CHECKPOINT");
  command->add_option("overrides", flags->overrides, "Such as data.test_samples=100")
      ->type_name("KEY=VALUE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--data", flags->data, "Another data set than the run's: data.path=FOLDER")
      ->type_name("PATH");
  command->add_option("--config", flags->config, "A YAML file, for weights that belong to no run")
      ->type_name("FILE.yaml");
  command->add_option("--weights", flags->weights, "Which weights of a checkpoint")
      ->type_name("auto|ema|model")
      ->check(CLI::IsMember({"auto", "ema", "model"}).description(""));
  command
      ->add_option("--examples", flags->examples,
                   "Keep N pictures with their predictions in the run, for 'mhla compare'")
      ->type_name("N")
      ->check(not_negative());
  command->add_flag("--json", flags->json, "Print one JSON document, with per-class results");
  command->footer("Example: mhla eval runs/tiny --data relations --json");
  command->callback([flags] { run_eval(*flags); });
}

}  // namespace mhla::cli
