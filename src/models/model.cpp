#include "models/model.h"

#include <ATen/ops/empty.h>

#include <map>

#include "mhla/core/text.h"
#include "mhla/error.h"
#include "models/attention.h"
#include "nn/modules/creation.h"

namespace mhla::models {
namespace {

struct Entry {
  std::string family, options;
  ModelFactory factory;
};

std::map<std::string, Entry>& registry() {
  static std::map<std::string, Entry> entries;
  return entries;
}

// `attention.lepe=3` is an option of the attention layers.
Request divided(const std::string& name, std::string_view options) {
  constexpr std::string_view kPrefix = "attention.";
  Request request{name, {}, {}};
  for (const std::string_view word : split(options, ' ')) {
    if (word.empty()) continue;
    const bool inner = word.starts_with(kPrefix);
    std::string& text = inner ? request.attention : request.options;
    if (!text.empty()) text += ' ';
    text += inner ? word.substr(kPrefix.size()) : word;
  }
  return request;
}

// The last of each key counts.
std::string without_repeats(const std::string& options) {
  std::vector<std::string> words;
  for (const std::string_view word : split(options, ' ')) {
    if (word.empty()) continue;
    const std::string_view key = word.substr(0, word.find('='));
    std::erase_if(words, [&](const std::string& each) {
      return std::string_view(each).substr(0, each.find('=')) == key;
    });
    words.emplace_back(word);
  }
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// NOTE: Module::to refuses the way from memory to none; the tensors stay the same objects.
void forget_values(torch::nn::Module& module) {
  const auto forget = [](const at::Tensor& tensor) {
    if (tensor.is_meta()) return;
    const at::Tensor empty = at::empty(tensor.sizes(), tensor.options().device(c10::kMeta));
    tensor.unsafeGetTensorImpl()->shallow_copy_from(empty.getIntrusivePtr());
  };
  for (const at::Tensor& tensor : module.parameters()) forget(tensor);
  for (const at::Tensor& tensor : module.buffers()) forget(tensor);
}

}  // namespace

at::Tensor Model::fit(const std::string& parameter, const at::Tensor& stored,
                      std::string& how) const {
  const auto parameters = named_parameters();
  const auto* wanted = parameters.find(parameter);
  if (!wanted) return {};
  for (const auto& module : modules(/*include_self=*/false)) {
    auto* mixed = dynamic_cast<Mixed*>(module.get());
    if (!mixed || !mixed->mixing().is_same(*wanted)) continue;
    const std::int64_t blocks = stored.dim() < 2 ? 0 : stored.size(stored.dim() > 2 ? 1 : 0);
    if (blocks == 0 || stored.numel() % (blocks * blocks) != 0) return {};
    const BlockLayout from = layout_with(blocks, mixed->layout());
    how = "mixing matrix of " + std::to_string(from.mixing_size()) + " blocks resampled";
    return mixed->resampled(stored, from);
  }
  return {};
}

StateDict Model::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  for (const Naming& naming : namings()) {
    if (naming.sign.empty() || !any_contains(tensors, naming.sign)) continue;
    return read_as(naming, std::move(tensors), notes);
  }
  return tensors;
}

bool Model::may_lack(const std::string&) const { return false; }

void Model::constrain() {
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* mixed = dynamic_cast<Mixed*>(module.get())) mixed->constrain();
  }
}

void Model::check_inputs(const std::vector<at::Tensor>& inputs) const {
  const auto wanted = input_names();
  if (inputs.size() == wanted.size()) return;
  std::string list;
  for (const std::string& each : wanted) list += (list.empty() ? "" : ", ") + each;
  fail("models", name, ": expected ", wanted.size(), " inputs (", list, "), got ", inputs.size());
}

ModelFamily::ModelFamily(std::string family, std::vector<Size> sizes, ModelFactory factory) {
  for (const Size& size : sizes) registry()[size.name] = {family, size.options, factory};
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : registry()) names.push_back(name);
  return names;
}

std::shared_ptr<Model> create_model(const std::string& name, std::string_view options,
                                    const CreateOptions& create) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    const std::vector<std::string> known = model_names();
    const std::string near = nearest(name, known);
    std::string list;
    for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
    fail("models", "unknown model '", name, "'",
         near.empty() ? "" : "; did you mean '" + near + "'?", " (known: ", list, ")");
  }
  const Entry& entry = found->second;
  const std::string all = without_repeats(entry.options + " " + std::string(options));
  const nn::CreateWith where({.device = create.device, .fill = false});
  const std::shared_ptr<Model> model = entry.factory(divided(name, all));
  model->name = name;
  model->family = entry.family;
  model->options = all;
  create.device.is_meta() ? forget_values(*model) : model->to(create.device);
  return model;
}

std::int64_t count_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace mhla::models
