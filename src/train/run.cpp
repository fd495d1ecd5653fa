#include "train/run.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/torch/weights.h"
#include "mhla/core/atomic_file.h"
#include "mhla/error.h"
#include "models/weights.h"
#include "tasks/task.h"
#include "train/checkpoint.h"
#include "train/precision.h"
#include "train/trainer.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

// A configuration read to its last key.
struct Setup {
  TrainOptions options;
  std::string model, model_options;
  std::unique_ptr<tasks::Task> task;
};

Setup read(io::Config& config) {
  Setup setup;
  io::ConfigSection train(config, "train"), optimizer(config, "train.optimizer"),
      schedule(config, "train.schedule"), ema(config, "train.ema");
  setup.options.fields(train);
  setup.options.optimizer.fields(optimizer);
  setup.options.schedule.fields(schedule);
  setup.options.ema.fields(ema);
  setup.task = tasks::make_task(config);
  for (const auto& [key, value] : config.take("model")) {
    if (value.find(' ') != std::string::npos) {
      fail("config", "model.", key, ": no spaces allowed, got '", value, "'",
           config.origin("model." + key));
    }
    if (key == "name") {
      setup.model = value;
    } else {
      setup.model_options += key + "=" + value + " ";
    }
  }
  if (setup.model.empty()) fail("config", "model.name: missing (mhla info --model all lists them)");
  config.finish();
  return setup;
}

// The first weights depend on the seed alone.
std::shared_ptr<models::Model> make_model(const Setup& setup, c10::Device device) {
  constexpr std::uint64_t kBeforeTheFirstStep = ~0ull;
  seed_step(c10::kCPU, static_cast<std::uint64_t>(setup.options.seed), kBeforeTheFirstStep, 0);
  const auto model = models::create_model(setup.model, setup.model_options);
  if (setup.options.precision == "f64") model->to(at::kDouble);
  model->to(device);
  return model;
}

c10::Device prepare(const TrainOptions& options) {
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  set_precision(options);
  return device_of(options.device);
}

void write_file(const std::string& path, const std::string& text) {
  AtomicFile file(path, "train");
  file.write(text.data(), text.size());
  file.commit();
}

void make_folder(const std::string& folder, const io::Config& config) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "train", "cannot make '", folder, "': ", error.message());
  write_file(folder + "/config.yaml", config.to_yaml());
}

// Where the weights of an evaluation lie.
struct Found {
  std::string file;
  std::int64_t step = -1;  // of a run
};

Found find_weights(const EvalCommand& command) {
  std::string checkpoint = command.path;
  if (const auto newest = Checkpoints::latest(command.path + "/checkpoints")) checkpoint = *newest;
  if (!fs::exists(fs::path(checkpoint) / "state.json")) {
    if (fs::exists(fs::path(command.path) / "config.yaml")) {
      fail(ErrorCode::io, "eval", "'", command.path, "' holds no checkpoint yet");
    }
    return {command.path, -1};
  }
  const auto file_of = [&](const char* name) {
    return (fs::path(checkpoint) / (std::string(name) + ".safetensors")).string();
  };
  const bool averaged = fs::exists(file_of("ema"));
  if (command.weights == "ema" && !averaged) {
    fail("eval", "'", checkpoint, "' holds no averaged weights: train.ema.decay was 0");
  }
  return {file_of(averaged && command.weights != "model" ? "ema" : "model"), step_of(checkpoint)};
}

// NOTE: names of files and folders need not be UTF-8.
std::string shown(const nlohmann::json& document, int indent) {
  return document.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Pictures, and a list of them that is written last. `mhla compare` shows them.
void write_examples(const std::string& run, const std::vector<tasks::Example>& examples) {
  const std::string folder = run + "/examples";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "eval", "cannot make '", folder, "': ", error.message());
  nlohmann::json list = nlohmann::json::array();
  for (const tasks::Example& each : examples) {
    const std::string file = std::to_string(list.size()) + ".png";
    write_file(folder + "/" + file, each.png);
    list.push_back({{"file", file}, {"label", each.label}, {"predicted", each.predicted}});
  }
  write_file(folder + "/examples.json", shown(list, 1));
}

class RealTraining : public Training {
 public:
  std::string resolved(io::Config config) override {
    const Setup setup = read(config);
    // Options of the model are known to the model alone.
    models::create_model(setup.model, setup.model_options, {.device = c10::kMeta});
    return config.to_yaml();
  }

  int train(const TrainCommand& command) override {
    io::Config config = command.config;
    const Setup setup = read(config);
    if (!command.resume && Checkpoints::latest(command.folder + "/checkpoints")) {
      fail("train", "'", command.folder, "' already holds a run: try --resume, or --out another");
    }
    c10::Device device = prepare(setup.options);
    const std::unique_ptr<Processes> processes = join_processes(device);
    const c10::DeviceGuard current(device);
    Job job{.options = setup.options,
            .folder = command.folder,
            .resume = command.resume,
            .device = device,
            .model = nullptr,
            .another_model = {},
            .task = setup.task.get(),
            .processes = processes.get()};
    if (processes->first()) make_folder(command.folder, config);
    job.model = make_model(setup, job.device);
    if (!setup.options.start_from.empty()) {
      models::load_weights(*job.model, setup.options.start_from);
    }
    job.another_model = [&] { return make_model(setup, job.device); };
    return train::train(job).signal;
  }

  std::string evaluate(const EvalCommand& command) override {
    io::Config config = command.config;
    const Setup setup = read(config);
    const c10::Device device = prepare(setup.options);
    const auto model = make_model(setup, device);
    const Found found = find_weights(command);
    if (found.step >= 0) {
      io::load(*model, found.file);
    } else {
      models::load_weights(*model, found.file);
    }
    model->eval();
    const auto loader = setup.task->loader({.split = tasks::Split::test,
                                            .batch = setup.options.batch / setup.options.accumulate,
                                            .seed = 0,
                                            .share = {}});
    const Autocast narrow(device, setup.options.precision);
    const tasks::Evaluation result = setup.task->evaluate(
        *model, *loader,
        {.device = device, .sum = {}, .details = command.json, .examples = command.examples});
    if (command.examples > 0) write_examples(command.path, result.examples);
    if (!command.json) return found.file + ": " + result.text;
    nlohmann::json document = nlohmann::json::parse(result.json);
    document["weights"] = found.file;
    if (found.step >= 0) document["step"] = found.step;
    document["model"] = setup.model;
    return shown(document, 2);
  }
};

}  // namespace
}  // namespace mhla::train

mhla::train::Training* mhla_make_training() { return new mhla::train::RealTraining; }
