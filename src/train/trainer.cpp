#include "train/trainer.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>

#include "io/torch/weights.h"
#include "mhla/error.h"
#include "nn/modules/batch_norm.h"
#include "train/checkpoint.h"
#include "train/distributed/sharded.h"
#include "train/feed.h"
#include "train/run_log.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/stop.h"

namespace mhla::train {
namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;

void expect(bool holds, const char* key, const char* what, auto value) {
  if (!holds) fail("train", "train.", key, ": expected ", what, ", got ", value);
}

void check(const TrainOptions& options, data::Share share) {
  const auto positive = [](const char* key, auto value) {
    expect(value >= 1, key, "at least 1", value);
  };
  const auto not_negative = [](const char* key, auto value) {
    expect(value >= 0, key, "at least 0", value);
  };
  positive("batch", options.batch);
  positive("accumulate", options.accumulate);
  positive("log_every", options.log_every);
  not_negative("steps", options.steps);
  if (options.steps == 0) positive("epochs", options.epochs);
  not_negative("save_every", options.save_every);
  not_negative("eval_every", options.eval_every);
  not_negative("threads", options.threads);
  not_negative("clip", options.clip);
  const OptimizerOptions& optimizer = options.optimizer;
  not_negative("optimizer.lr", optimizer.lr);
  expect(optimizer.eps > 0, "optimizer.eps", "above 0", optimizer.eps);
  not_negative("optimizer.weight_decay", optimizer.weight_decay);
  for (const double beta : optimizer.betas) {
    expect(beta >= 0 && beta < 1, "optimizer.betas", "at least 0 and below 1", beta);
  }
  expect(optimizer.momentum >= 0 && optimizer.momentum < 1, "optimizer.momentum",
         "at least 0 and below 1", optimizer.momentum);
  not_negative("schedule.warmup_epochs", options.schedule.warmup_epochs);
  not_negative("schedule.warmup_steps", options.schedule.warmup_steps);
  not_negative("schedule.cooldown_epochs", options.schedule.cooldown_epochs);
  not_negative("schedule.warmup_lr", options.schedule.warmup_lr);
  not_negative("schedule.min_lr", options.schedule.min_lr);
  const std::int64_t parts = options.accumulate * share.world;
  if (options.batch % parts != 0) {
    fail("train", "train.batch: ", options.batch, " does not divide into ", options.accumulate,
         " parts on ", share.world, " processes");
  }
}

std::unique_ptr<Optimizer> make_optimizer_of(const TrainOptions& options,
                                             const std::vector<Parameter>& parameters,
                                             Processes& processes) {
  return options.shard_optimizer ? make_sharded_optimizer(options.optimizer, parameters, processes)
                                 : make_optimizer(options.optimizer, parameters);
}

class Trainer {
 public:
  explicit Trainer(const Job& job)
      : job_(job),
        options_(job.options),
        processes_(*job.processes),
        model_(*job.model),
        loader_(job.task->loader(request(tasks::Split::train))),
        steps_per_epoch_(loader_->batches_per_epoch() / options_.accumulate),
        schedule_(options_.schedule, options_.optimizer.lr, checked_epoch(), options_.epochs,
                  options_.steps),
        parameters_(trained_parameters(model_, options_.optimizer.no_decay)),
        feed_(job.device),
        update_({.options = options_,
                 .device = job.device,
                 .model = model_,
                 .task = *job.task,
                 .processes = processes_,
                 .optimizer = make_optimizer_of(options_, parameters_, processes_),
                 .ema = options_.ema.decay != 0
                            ? std::make_unique<Ema>(options_.ema, job.another_model(), model_)
                            : nullptr,
                 .make_graph = job.make_graph},
                parameters_) {
    std::vector<Tensor> watched;
    for (const Parameter& each : parameters_) watched.push_back(each.value);
    processes_.watch(watched);
    if (options_.sync_batch_norm && !processes_.alone()) {
      nn::share_batch_norms(model_, [this](Tensor& tensor) { processes_.sum(tensor); });
    }
  }

  Outcome run() {
    const StopSignals signals;
    step_ = job_.resume ? restored() : 0;
    if (processes_.first()) {
      checkpoints_ = std::make_unique<Checkpoints>(folder(), options_.keep);
      log_ = std::make_unique<RunLog>(job_.folder, step_, schedule_.total_steps());
      if (step_ > 0) {
        log_->say("resumed at step " + std::to_string(step_) + " of " +
                  std::to_string(schedule_.total_steps()));
      }
    }
    model_.train();
    begin_window();
    const std::int64_t total = schedule_.total_steps();
    Outcome outcome{.step = 0, .steps = total, .signal = 0, .evaluation = {}};
    int signal = 0;
    while (step_ < total && signal == 0) {
      if (!in_sequence_ || step_ % steps_per_epoch_ == 0) find_batch();
      update();
      ++step_;
      signal = stop_signal();
      const bool last = step_ == total;
      if (step_ % options_.log_every == 0 || last || signal != 0) report();
      if (log_) log_->progress(step_);
      if (last || evaluates_now()) outcome.evaluation = evaluate();
      if (last || signal != 0 || saves_now()) save();
    }
    outcome.step = step_;
    outcome.signal = step_ < total ? signal : 0;
    return outcome;
  }

 private:
  std::string folder() const { return job_.folder + "/checkpoints"; }

  tasks::LoaderRequest request(tasks::Split split) const {
    return {.split = split,
            .batch = options_.batch / options_.accumulate,
            .seed = static_cast<std::uint64_t>(options_.seed),
            .share = processes_.share()};
  }

  std::int64_t checked_epoch() const {
    if (steps_per_epoch_ > 0) return steps_per_epoch_;
    fail("train", "train.batch: an epoch of this data is shorter than a batch of ", options_.batch);
  }

  // An epoch whose batches do not divide into updates leaves its last ones out.
  bool skips_batches() const { return loader_->batches_per_epoch() % options_.accumulate != 0; }

  void find_batch() {
    if (!in_sequence_ || skips_batches()) {
      feed_.forget();
      loader_->seek(step_ / steps_per_epoch_, step_ % steps_per_epoch_ * options_.accumulate);
    }
    in_sequence_ = true;
  }

  // What the task does to the batch of a part of a step.
  Feed::Prepare preparation(std::int64_t number, std::int64_t part) const {
    const tasks::Step step{.seed = static_cast<std::uint64_t>(options_.seed),
                           .number = number,
                           .part = part_number(part, processes_.share())};
    return [this, step](const data::Batch& batch) { return job_.task->prepared(batch, step); };
  }

  void update() {
    std::vector<data::Batch> batches;
    for (std::int64_t part = 0; part < options_.accumulate; ++part) {
      batches.push_back(feed_.next(*loader_, preparation(step_, part)));
    }
    update_.run(step_, schedule_.lr(step_), batches);
    if (const std::string news = update_.take_news(); log_ && !news.empty()) log_->say(news);
    const bool ends_epoch = (step_ + 1) % steps_per_epoch_ == 0;
    if (step_ + 1 < schedule_.total_steps() && !(ends_epoch && skips_batches())) {
      feed_.prefetch(*loader_, preparation(step_ + 1, 0));
    }
  }

  // Every process must stop at the same step; asking the others makes all wait for their GPU.
  int stop_signal() {
    constexpr std::int64_t kStepsBetweenQuestions = 8;
    const int own = StopSignals::requested();
    if (processes_.alone()) return own;
    if (step_ % kStepsBetweenQuestions != 0) return 0;
    Tensor asked = at::full({}, own, at::TensorOptions().dtype(at::kLong).device(job_.device));
    processes_.sum(asked);
    return asked.item<std::int64_t>() == 0 ? 0 : std::max(own, SIGTERM);
  }

  void begin_window() {
    update_.clear_loss();
    window_begin_ = Clock::now();
    window_step_ = step_;
  }

  void report() {
    const auto steps = static_cast<double>(step_ - window_step_);
    if (steps < 1) return;
    processes_.sum(update_.loss_sum());
    const double loss = update_.loss_sum().item<double>() / steps / processes_.share().world;
    const double seconds = std::chrono::duration<double>(Clock::now() - window_begin_).count();
    const io::StateDict scale_state = update_.scale().state();
    const double scale = scale_state.empty() ? 0 : scale_state.at("loss_scale").item<double>();
    if (log_) {
      Numbers numbers = {{"loss", loss}, {"lr", schedule_.lr(step_ - 1)}};
      numbers.emplace_back("grad_norm", update_.norm().item<double>());
      if (scale > 0) numbers.emplace_back("loss_scale", scale);
      numbers.emplace_back("samples_per_second",
                           steps * static_cast<double>(options_.batch) / seconds);
      log_->write("train", step_, epoch(), numbers);
    }
    // In f16 a step may overflow and be left out; scales below 1 say that the weights do.
    if (!std::isfinite(loss) && scale < 1) {
      fail(ErrorCode::corrupt_data, "train", "the loss became ", loss, " before step ", step_,
           ": lower train.optimizer.lr, set train.clip or use another train.precision");
    }
    begin_window();
  }

  double epoch() const {
    return static_cast<double>(step_) / static_cast<double>(steps_per_epoch_);
  }

  bool evaluates_now() const {
    return options_.eval_every > 0 && step_ % (options_.eval_every * steps_per_epoch_) == 0;
  }

  bool saves_now() const {
    return step_ % (options_.save_every > 0 ? options_.save_every : steps_per_epoch_) == 0;
  }

  tasks::Evaluation evaluate() {
    if (!test_) test_ = job_.task->loader(request(tasks::Split::test));
    models::Model& model = averaged() ? averaged()->model() : model_;
    model.eval();
    tasks::EvaluateRequest how{.device = job_.device, .sum = {}, .details = false};
    if (!processes_.alone()) how.sum = [this](Tensor& tensor) { processes_.sum(tensor); };
    const Autocast narrow(job_.device, options_.precision);
    tasks::Evaluation result = job_.task->evaluate(model, *test_, how);
    if (!averaged()) model.train();
    if (log_) log_->write("eval", step_, epoch(), result.numbers);
    begin_window();
    return result;
  }

  Ema* averaged() { return update_.ema(); }

  io::StateDict optimizer_state() const {
    io::StateDict state = update_.optimizer().state();
    state.merge(update_.scale().state());
    return state;
  }

  void save() {
    // Every process takes part where each has only its share of the optimiser.
    CheckpointContent content{
        .files = {{"model", io::state_dict(model_)}, {"optimizer", optimizer_state()}},
        .numbers = {{"epoch", epoch()}}};
    if (averaged()) content.files["ema"] = io::state_dict(averaged()->model());
    if (checkpoints_) checkpoints_->save(step_, content);
    processes_.wait_for_all();
  }

  std::int64_t restored() {
    const auto newest = Checkpoints::latest(folder());
    if (!newest) return 0;
    restore(*newest, "model", io::state_dict(model_));
    restore(*newest, "optimizer", optimizer_state());
    if (averaged()) restore(*newest, "ema", io::state_dict(averaged()->model()));
    return step_of(*newest);
  }

  const Job& job_;
  const TrainOptions& options_;
  Processes& processes_;
  models::Model& model_;
  std::unique_ptr<data::Loader> loader_, test_;
  std::int64_t steps_per_epoch_;
  Schedule schedule_;
  std::vector<Parameter> parameters_;
  Feed feed_;
  UpdateStep update_;
  std::unique_ptr<Checkpoints> checkpoints_;  // of the first process
  std::unique_ptr<RunLog> log_;

  std::int64_t step_ = 0;           // updates done
  bool in_sequence_ = false;        // next() gives the batch of this step
  Clock::time_point window_begin_;  // of the steps since the last report
  std::int64_t window_step_ = 0;
};

}  // namespace

Outcome train(const Job& job) {
  check(job.options, job.processes->share());
  const ComputingStream stream(job.device);
  return Trainer(job).run();
}

}  // namespace mhla::train
