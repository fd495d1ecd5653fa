#include "tasks/classify.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "mhla/error.h"
#include "tasks/image_data.h"

namespace mhla::tasks {
namespace {

using at::Tensor;

// In which losses are computed: f32, or f64 where the network is.
Tensor widened(const Tensor& x) {
  return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// NOTE: not by parameters(), which names them all.
std::optional<at::ScalarType> first_type(const torch::nn::Module& module) {
  for (const Tensor& each : module.parameters(/*recurse=*/false)) return each.scalar_type();
  for (const auto& child : module.children()) {
    if (const auto found = first_type(*child)) return found;
  }
  return std::nullopt;
}

// As the network's weights are: f32, or f64.
Tensor input_of(const models::Model& model, const Tensor& image) {
  return image.to(first_type(model).value_or(at::kFloat));
}

class Classify : public Task {
 public:
  explicit Classify(io::Config& config) : data_(config) {
    io::ConfigSection section(config, "task");
    section("mixup", mix_.mixup);
    section("cutmix", mix_.cutmix);
    section("mix_probability", mix_.probability);
    section("mix_switch", mix_.switch_to_cutmix);
    section("label_smoothing", mix_.smoothing);
    const auto check = [](const char* key, double value, double most) {
      if (value >= 0 && value <= most) return;
      fail("config", "task.", key, ": expected 0 to ", most, ", got ", value);
    };
    check("mixup", mix_.mixup, 1000);
    check("cutmix", mix_.cutmix, 1000);
    check("mix_probability", mix_.probability, 1);
    check("mix_switch", mix_.switch_to_cutmix, 1);
    check("label_smoothing", mix_.smoothing, 1);
  }

  std::unique_ptr<data::Loader> loader(const LoaderRequest& request) override {
    return data_.loader(request);
  }

  data::Batch prepared(const data::Batch& batch, const Step& step) const override {
    const Tensor &image = batch.tensors.at("image"), &target = batch.tensors.at("target");
    if (!mix_.on() || target.scalar_type() != at::kLong) return batch;
    const Mix mix = draw_mix(mix_, image.size(2), image.size(3), step.seed,
                             static_cast<std::uint64_t>(step.number),
                             static_cast<std::uint64_t>(step.part));
    data::Batch result{.tensors = {}, .samples = batch.samples};
    std::tie(result.tensors["image"], result.tensors["target"]) = mixed(
        mix, image, target, data_.classes(), mix_.smoothing);
    return result;
  }

  Tensor loss(models::Model& model, const data::Batch& batch) override {
    const Tensor image = input_of(model, batch.tensors.at("image"));
    const Tensor logits = model.forward(std::vector<Tensor>{image});
    check(model, logits);
    return classification_loss(logits, batch.tensors.at("target"), mix_.smoothing);
  }

  Evaluation evaluate(models::Model& model, data::Loader& loader,
                      const EvaluateRequest& request) const override {
    const at::NoGradGuard no_gradient;
    Hits hits(data_.classes(), request.device);
    std::vector<Example> examples;
    loader.seek(0, 0);
    for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
      const data::Batch batch = to_device(loader.next(), request.device);
      if (batch.samples == 0) continue;  // another process has what is left
      const Tensor image = input_of(model, batch.tensors.at("image"));
      const Tensor logits = model.forward(std::vector<Tensor>{image});
      check(model, logits);
      hits.add(logits, batch.tensors.at("target"));
      add_examples(batch, logits, request.examples, examples);
    }
    hits.sum(request.sum);
    Evaluation result = hits.report(request.details);
    result.examples = std::move(examples);
    return result;
  }

 private:
  // The first ones of the set, until there are `wanted`.
  void add_examples(const data::Batch& batch, const Tensor& logits, std::int64_t wanted,
                    std::vector<Example>& examples) const {
    const Tensor& images = batch.tensors.at("image");
    for (std::int64_t i = 0; i < images.size(0); ++i) {
      if (static_cast<std::int64_t>(examples.size()) >= wanted) return;
      const auto label = batch.tensors.at("target").select(0, i).item<std::int64_t>();
      const auto predicted = logits.select(0, i).argmax().item<std::int64_t>();
      examples.push_back({.png = data_.png(images.select(0, i)),
                          .label = data_.name_of(label),
                          .predicted = data_.name_of(predicted)});
    }
  }

  void check(const models::Model& model, const Tensor& logits) const {
    if (logits.dim() == 2 && logits.size(1) == data_.classes()) return;
    fail("tasks", "classify: '", model.name, "' gives ", logits.sizes(), ", the data has ",
         data_.classes(), " classes: set model.classes");
  }

  ImageData data_;
  MixupOptions mix_;
};

const TaskName kClassify("classify",
                         [](io::Config& config) { return std::make_unique<Classify>(config); });

}  // namespace

Tensor classification_loss(const Tensor& logits, const Tensor& target, double smoothing) {
  const Tensor wide = widened(logits);
  if (target.scalar_type() == at::kLong) {
    return at::cross_entropy_loss(wide, target, {}, at::Reduction::Mean, -100, smoothing);
  }
  return -(target * at::log_softmax(wide, -1)).sum(-1).mean();
}

Hits::Hits(std::int64_t classes, c10::Device device) {
  const auto options = at::TensorOptions().device(device);
  confusion_ = at::zeros({classes, classes}, options.dtype(at::kLong));
  totals_ = at::zeros({3}, options.dtype(at::kDouble));
}

void Hits::add(const Tensor& logits, const Tensor& target) {
  const std::int64_t classes = logits.size(1);
  const Tensor wide = widened(logits);
  const Tensor best = std::get<1>(wide.topk(std::min<std::int64_t>(5, classes), 1));
  const Tensor five = best.eq(target.unsqueeze(1)).any(1);
  // NOTE: bincount would wait for the device.
  confusion_.view(-1).index_add_(0, target * classes + best.select(1, 0), at::ones_like(target));
  const Tensor loss = at::cross_entropy_loss(wide, target, {}, at::Reduction::Sum);
  totals_ += at::stack({at::full_like(loss, target.size(0)), loss, five.sum().to(loss)})
                 .to(at::kDouble);
}

void Hits::sum(const std::function<void(Tensor&)>& over_processes) {
  if (!over_processes) return;
  over_processes(confusion_);
  over_processes(totals_);
}

Evaluation Hits::report(bool details) const {
  using nlohmann::json;
  const Tensor confusion = confusion_.cpu(), totals = totals_.cpu();
  const double* total = totals.const_data_ptr<double>();
  const double samples = total[0];
  if (samples < 1) fail("tasks", "classify: there is nothing to evaluate");
  const double top1 = 100.0 * static_cast<double>(confusion.trace().item<std::int64_t>()) / samples;
  const double top5 = 100.0 * total[2] / samples, loss = total[1] / samples;
  json all = {{"samples", static_cast<std::int64_t>(samples)},
              {"top1", top1},
              {"top5", top5},
              {"loss", loss}};
  char line[128];
  std::snprintf(line, sizeof line, "top-1 %.2f %%, top-5 %.2f %%, loss %.4f, %.0f pictures\n", top1,
                top5, loss, samples);
  Evaluation result{
      .numbers = {{"top1", top1}, {"top5", top5}, {"loss", loss}}, .json = {}, .text = line};
  if (details) {
    const auto matrix = confusion.accessor<std::int64_t, 2>();
    json per_class = json::array(), rows = json::array();
    for (std::int64_t i = 0; i < matrix.size(0); ++i) {
      std::int64_t count = 0, taken = 0;
      json row = json::array();
      for (std::int64_t j = 0; j < matrix.size(1); ++j) {
        count += matrix[i][j];
        taken += matrix[j][i];
        row.push_back(matrix[i][j]);
      }
      const auto share = [&](std::int64_t of) {
        return of > 0 ? json(100.0 * static_cast<double>(matrix[i][i]) / static_cast<double>(of))
                      : json();
      };
      per_class.push_back({{"class", i},
                           {"samples", count},
                           {"recall", share(count)},
                           {"precision", share(taken)}});
      rows.push_back(std::move(row));
    }
    all["per_class"] = std::move(per_class);
    all["confusion"] = std::move(rows);
  }
  result.json = all.dump();
  return result;
}

}  // namespace mhla::tasks
