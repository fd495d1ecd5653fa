#include "models/weights.h"

#include <set>

#include "io/precision.h"
#include "models/attention.h"
#include "models/weights/load.h"

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

// What MHLA adds to a stock layer; projections must be there.
bool is_added(const std::string& part) {
  for (const char* word :
       {"mixing_matrix", "_attn.conv.", "norm", "lepe.", "to_gate.", "g_proj."}) {
    if (part.find(word) != std::string::npos) return true;
  }
  return part.starts_with("g.");
}

// What wrappers put before every name.
void strip_wrappers(StateDict& tensors, std::vector<std::string>& notes) {
  for (const char* word : {"module.", "_orig_mod.", "model.diffusion_model."}) {
    const std::string prefix = word;
    bool all = !tensors.empty();
    for (const auto& [name, tensor] : tensors) all = all && name.starts_with(prefix);
    if (!all) continue;
    rename_prefix(tensors, prefix, "");
    notes.push_back("names begin with '" + prefix + "', which is left out");
  }
}

// How many matrices a stock checkpoint did not have, for the report.
void note_new_matrices(io::LoadReport& report, const StateDict& own) {
  std::size_t count = 0;
  std::set<std::int64_t> sizes;
  for (const std::string& name : report.kept) {
    if (!is_mixing(name)) continue;
    ++count;
    sizes.insert(own.at(name).size(own.at(name).dim() > 2 && own.at(name).size(2) > 1 ? 1 : 0));
  }
  if (count == 0) return;
  std::string text = std::to_string(count) + " mixing matrices of ";
  for (const std::int64_t size : sizes) {
    text += (size == *sizes.begin() ? "" : " and ") + std::to_string(size);
  }
  report.notes.push_back(text + " blocks created, at their start");
}

}  // namespace

bool is_mixing(const std::string& name) {
  return name.find("mixing_matrix") != std::string::npos ||
         name.find("_attn.conv.weight") != std::string::npos;
}

io::Metadata metadata_of(const Model& model) {
  return {{"format", "pt"}, {kModelKey, model.name}, {kOptionsKey, model.options}};
}

io::LoadReport load_state(Model& model, StateDict tensors, const LoadFrom& from) {
  std::vector<std::string> notes = from.notes;
  strip_wrappers(tensors, notes);
  const StateDict adopted = model.adopt(std::move(tensors), notes);
  bool stock = true;
  for (const auto& [name, tensor] : adopted) stock = stock && !is_mixing(name);
  const auto prefixes = mixed_prefixes(model);
  io::LoadOptions options;
  options.source = from.source;
  options.strict = from.strict;  // a load that fails leaves the network as it was
  options.reshape = [&model](const std::string& name, const at::Tensor& stored, const io::Shape&,
                             std::string& how) { return model.fit(name, stored, how); };
  options.may_be_missing = [&](const std::string& name) {
    if (model.may_lack(name)) return true;
    for (const std::string& prefix : prefixes) {
      if (stock && name.starts_with(prefix)) return is_added(name.substr(prefix.size()));
    }
    return false;
  };
  io::LoadReport report = io::load(model, adopted, options);
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  note_new_matrices(report, model.state());
  return report;
}

std::string load_weights(Model& model, const StateDict& tensors, bool strict) {
  return load_state(model, tensors, {.source = "tensors in memory", .strict = strict}).text();
}

std::string load_weights(Model& model, const std::string& path, bool strict) {
  const io::Checkpoint file = io::Checkpoint::open(path).weights();
  return load_state(model, io::state_dict(file),
                    {.source = file.path(), .strict = strict, .notes = file.notes()})
      .text();
}

std::vector<std::string> save_weights(const Model& model, const std::string& path,
                                      const SaveWeights& how) {
  io::SaveOptions options;
  options.metadata = metadata_of(model);
  options.max_file_bytes = how.max_file_bytes;
  if (!how.dtype.empty()) options.precision = io::parse_precision(how.dtype);
  return io::save(path, model.export_as(how.package, how.partial).tensors, options);
}

}  // namespace mhla::models
