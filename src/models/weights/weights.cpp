#include "models/weights.h"

#include "io/torch/weights.h"
#include "models/attention.h"

namespace mhla::models {
namespace {

// What hangs below a layer with a mixing matrix.
std::vector<std::string> mixed_prefixes(const Model& model) {
  std::vector<std::string> prefixes;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const Mixed*>(item.value().get())) prefixes.push_back(item.key() + ".");
  }
  return prefixes;
}

bool is_mixing(const std::string& name) {
  return name.find("mixing_matrix") != std::string::npos ||
         name.find("_attn.conv.weight") != std::string::npos;
}

std::string load_from(Model& model, const StateDict& tensors, bool strict,
                      const std::string& source, std::vector<std::string> notes) {
  const StateDict adopted = model.adopt(tensors, notes);
  bool stock = true;
  for (const auto& [name, tensor] : adopted) stock = stock && !is_mixing(name);
  const auto prefixes = mixed_prefixes(model);
  io::LoadOptions options;
  options.source = source;
  options.strict = strict;  // a load that fails leaves the network as it was
  options.reshape = [&model](const std::string& name, const at::Tensor& stored, const io::Shape&,
                             std::string& how) { return model.fit(name, stored, how); };
  options.may_be_missing = [&](const std::string& name) {
    if (model.may_lack(name)) return true;
    for (const std::string& prefix : prefixes) {
      if (stock && name.starts_with(prefix)) return true;
    }
    return false;
  };
  io::LoadReport report = io::load(model, adopted, options);
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  return report.text();
}

}  // namespace

std::string load_weights(Model& model, const StateDict& tensors, bool strict) {
  return load_from(model, tensors, strict, "tensors in memory", {});
}

std::string load_weights(Model& model, const std::string& path, bool strict) {
  const io::Checkpoint file = io::Checkpoint::open(path).weights();
  return load_from(model, io::state_dict(file), strict, file.path(), file.notes());
}

std::vector<std::string> save_weights(const Model& model, const std::string& path) {
  io::SaveOptions options;
  options.metadata = {
      {"format", "pt"}, {"mhla.model", model.name}, {"mhla.options", model.options}};
  return io::save(path, model, options);
}

}  // namespace mhla::models
