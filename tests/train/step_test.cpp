// A recorded step: replayed, it does what the step itself does, bit for bit, while the rate, the
// batch and the random numbers go on. The recording here runs the work again on the CPU.
#include "train/step.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "mhla/error.h"

namespace mhla::train {
namespace {

using at::Tensor;

class Pictures : public tasks::Task {
 public:
  std::unique_ptr<data::Loader> loader(const tasks::LoaderRequest&) override { return nullptr; }
  Tensor loss(models::Model& model, const data::Batch& batch) override {
    ++losses;
    return at::cross_entropy_loss(model.forward(std::vector<Tensor>{batch.tensors.at("image")}),
                                  batch.tensors.at("target"));
  }
  tasks::Evaluation evaluate(models::Model&, data::Loader&,
                             const tasks::EvaluateRequest&) const override {
    return {};
  }
  int losses = 0;
};

// Keeps the work and does it at each replay, as a GPU would.
struct Again : StepGraph {
  std::size_t record(const std::function<void()>& given) override {
    work = given;
    return 1;
  }
  void replay() override {
    ++*replays;
    work();
  }
  explicit Again(int* count) : replays(count) {}
  std::function<void()> work;
  int* replays;
};

struct Refuses : StepGraph {
  std::size_t record(const std::function<void()>&) override {
    throw std::runtime_error("operation not permitted\nwhen the stream is capturing");
  }
  void replay() override {}
};

std::shared_ptr<models::Model> network() {
  seed_step(c10::kCPU, 5, 0, 0);
  return models::create_model("tiny-deit",
                              "attention=mhla dim=16 heads=2 depth=2 patch=8 blocks=2x2 "
                              "drop_path=0.5 class_token=false");
}

std::vector<data::Batch> batches_of(std::int64_t step, std::int64_t parts) {
  seed_step(c10::kCPU, 9, static_cast<std::uint64_t>(step), 0);
  std::vector<data::Batch> result;
  for (std::int64_t i = 0; i < parts; ++i) {
    result.push_back({.tensors = {{"image", at::randn({4, 3, 32, 32})},
                                  {"target", at::randint(10, {4}, at::kLong)}},
                      .samples = 4});
  }
  return result;
}

struct Trained {
  io::StateDict weights, averages, optimizer;
  double loss = 0;
  int replays = 0;
  std::string news;
};

Trained train_steps(const TrainOptions& options, int steps = 9) {
  Trained result;
  const auto model = network();
  model->train();
  Pictures task;
  Processes processes;
  auto parameters = trained_parameters(*model, {});
  UpdateStep update({.options = options,
                     .device = c10::kCPU,
                     .model = *model,
                     .task = task,
                     .processes = processes,
                     .optimizer = make_optimizer(options.optimizer, parameters),
                     .ema = std::make_unique<Ema>(options.ema, network(), *model),
                     .make_graph = [&] { return std::make_unique<Again>(&result.replays); }},
                    parameters);
  for (int step = 0; step < steps; ++step) {
    update.run(step, 1e-2 / (1 + step), batches_of(step, options.accumulate));
    result.news += update.take_news();
  }
  result.weights = model->state();
  result.averages = update.ema()->model().state();
  result.optimizer = update.optimizer().state();
  result.loss = update.loss_sum().item<double>();
  return result;
}

void expect_same(const io::StateDict& a, const io::StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

TrainOptions small() {
  TrainOptions options;
  options.clip = 0.5;
  options.ema.decay = 0.9;
  return options;
}

void expect_replays(TrainOptions options, int wanted) {
  options.graph = "auto";
  const Trained recorded = train_steps(options);
  options.graph = "off";
  const Trained plain = train_steps(options);
  EXPECT_EQ(recorded.replays, wanted);
  EXPECT_EQ(plain.replays, 0);
  EXPECT_EQ(recorded.loss, plain.loss);
  expect_same(recorded.weights, plain.weights);
  expect_same(recorded.averages, plain.averages);
  expect_same(recorded.optimizer, plain.optimizer);
  EXPECT_NE(recorded.news.find("replayed"), std::string::npos) << recorded.news;
}

TEST(StepGraph, ReplayedStepsAreTheStepsThemselves) { expect_replays(small(), 6); }

TEST(StepGraph, WaitsUntilTheAveragesAverage) {
  TrainOptions options = small();
  options.ema.start = 6;
  expect_replays(options, 3);
}

TEST(StepGraph, ScalesTheLossOfHalfPrecision) {
  TrainOptions options = small();
  options.precision = "f16";
  options.optimizer.name = "sgd";
  expect_replays(options, 6);
}

TEST(StepGraph, WhyThereIsNoneIsSaidOnceOrIsAnError) {
  TrainOptions again = small(), parts = small();
  again.recompute = true;
  parts.accumulate = 2;
  for (TrainOptions* each : {&again, &parts}) {
    EXPECT_EQ(train_steps(*each, 5).replays, 0);
    each->graph = "on";
    EXPECT_THROW(train_steps(*each, 1), Error);
  }
}

TEST(StepGraph, OnACpuThereIsNone) { EXPECT_NE(no_step_graph(c10::kCPU), ""); }

TEST(StepGraph, AFailedRecordingSaysWhatToDo) {
  const TrainOptions options = small();
  const auto model = network();
  Pictures task;
  Processes processes;
  auto parameters = trained_parameters(*model, {});
  UpdateStep update({.options = options,
                     .device = c10::kCPU,
                     .model = *model,
                     .task = task,
                     .processes = processes,
                     .optimizer = make_optimizer(options.optimizer, parameters),
                     .ema = nullptr,
                     .make_graph = [] { return std::make_unique<Refuses>(); }},
                    parameters);
  for (int step = 0; step < 3; ++step) update.run(step, 1e-3, batches_of(step, 1));
  try {
    update.run(3, 1e-3, batches_of(3, 1));
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("operation not permitted)"), std::string::npos) << text;
    EXPECT_NE(text.find("train.graph=off"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace mhla::train
