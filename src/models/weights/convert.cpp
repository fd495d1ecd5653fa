// `mhla convert` with a network in between.
#include "models/convert.h"

#include <ATen/Context.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/precision.h"
#include "mhla/core/atomic_file.h"
#include "mhla/core/text.h"
#include "mhla/error.h"
#include "models/wan/wan.h"
#include "models/weights/load.h"

namespace mhla::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kWhere = "convert";

// Given a folder, the file that the package looks for in it.
std::string file_for(const std::string& out, const std::string& package) {
  std::error_code ignored;
  if (!fs::is_directory(out, ignored)) return out;
  const char* name = package == "diffusers" ? "diffusion_pytorch_model.safetensors"
                                            : "model.safetensors";
  return (fs::path(out) / name).string();
}

// The type that all floating tensors share.
std::optional<io::ScalarType> common_type(const io::Checkpoint& file) {
  std::optional<io::ScalarType> common;
  for (const io::Tensor& tensor : file.tensors()) {
    if (!io::is_floating(tensor.type)) continue;
    if (common && *common != tensor.type) return std::nullopt;
    common = tensor.type;
  }
  return common && io::can_round_to(*common) ? common : std::nullopt;
}

std::string metadata_at(const io::Checkpoint& file, const char* key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

struct Choice {
  std::string model, options;
  std::vector<std::string> notes;
};

// Options of one attention layer mean nothing to another.
std::string without_attention(const std::string& options) {
  std::string kept;
  for (const std::string_view word : split(options, ' ')) {
    if (!word.starts_with("attention.")) kept += (kept.empty() ? "" : " ") + std::string(word);
  }
  return kept;
}

// Which network: what was typed, before that what the file says about itself or shows by its names.
Choice choose(const mhla_conversion& request, const io::Checkpoint& file,
              const StateDict& tensors) {
  Choice choice{.model = request.model, .options = {}, .notes = {}};
  const std::string typed = request.options, said = metadata_at(file, kModelKey);
  if (choice.model.empty()) choice.model = said;
  if (choice.model.empty()) {
    fail(kWhere, "'", file.path(), "' does not say which network it is: try --model NAME ",
         "('mhla info --model all' lists them)");
  }
  if (choice.model == said) {
    choice.options = metadata_at(file, kOptionsKey);
    if (typed.find("attention=") != std::string::npos) {
      choice.options = without_attention(choice.options);
    }
    if (!choice.options.empty()) choice.notes.push_back("options of the file: " + choice.options);
  } else if (choice.model.find("wan") != std::string::npos &&
             any_contains(tensors, ".block_attn.conv.") &&
             typed.find("attention") == std::string::npos &&
             typed.find("blocks=") == std::string::npos) {
    choice.options = wan_options(tensors);
    choice.notes.push_back("the authors' Wan-MHLA, told by its names: " + choice.options);
  }
  choice.options += " " + typed;
  return choice;
}

json changes(const std::vector<io::LoadReport::Reshaped>& list) {
  json result = json::array();
  for (const auto& each : list) {
    result.push_back(
        {{"name", each.name}, {"stored", each.stored}, {"wanted", each.wanted}, {"how", each.how}});
  }
  return result;
}

std::string write_config(const std::string& out, const std::string& config) {
  std::error_code ignored;
  if (config.empty() || !fs::is_directory(out, ignored)) return {};
  const std::string path = (fs::path(out) / "config.json").string();
  if (fs::exists(path)) return "'" + path + "' is there already and stays as it is";
  AtomicFile file(path, kWhere);
  file.write(config.data(), config.size());
  file.commit();
  return "'" + path + "' written for the package";
}

// Before memory is taken for it: what a stranger's file says about itself may be anything.
void check_size(const Choice& choice, const io::Checkpoint& file) {
  constexpr std::int64_t kMostNew = 100'000'000;  // positions and mixing matrices of a large size
  std::int64_t held = 0;
  for (const io::Tensor& tensor : file.tensors()) held += tensor.size();
  const auto model = create_model(choice.model, choice.options, {.device = c10::kMeta});
  const std::int64_t wanted = count_parameters(*model);
  if (wanted <= 2 * held + kMostNew) return;
  fail(ErrorCode::corrupt_data, kWhere, choice.model, " has ", wanted, " parameters, '",
       file.path(), "' ", held, " elements: try another --model or --options");
}

std::string convert(const mhla_conversion& request) {
  const io::Checkpoint whole = io::Checkpoint::open(request.in);
  const io::Checkpoint file = *request.section ? whole.section(request.section) : whole.weights();
  const StateDict tensors = io::state_dict(file);
  const Choice choice = choose(request, file, tensors);
  const std::string package = *request.package ? request.package : "upstream";
  const std::optional<io::ScalarType> stored = common_type(file);

  check_size(choice, file);
  // What the file lacks starts from random numbers: the same at each run.
  at::manual_seed(0);
  const auto model = create_model(choice.model, choice.options);
  if (stored == io::ScalarType::f64) model->to(at::kDouble);
  std::vector<std::string> notes = file.notes();
  notes.insert(notes.end(), choice.notes.begin(), choice.notes.end());
  const bool partial = request.partial != 0;
  io::LoadReport report = load_state(
      *model, tensors, {.source = file.path(), .strict = !partial, .notes = std::move(notes)});
  Exported exported = model->export_as(package, partial);

  io::SaveOptions save;
  save.metadata = metadata_of(*model);
  save.max_file_bytes = request.max_file_bytes;
  save.precision = *request.dtype ? std::optional(io::parse_precision(request.dtype)) : stored;
  save.keep = whole.file_names();
  const io::Saved saved = io::write(file_for(request.out, package), exported.tensors, save);
  const std::string about_config = write_config(request.out, exported.config);
  if (!about_config.empty()) exported.notes.push_back(about_config);

  report.notes.insert(report.notes.end(), exported.notes.begin(), exported.notes.end());
  const json document = {
      {"in", file.path()},
      {"format", file.format()},
      {"model", model->name},
      {"options", save.metadata.at(kOptionsKey)},
      {"names", package},
      {"files", saved.files},
      {"dtype", save.precision ? io::name(*save.precision) : "f32"},
      {"tensors", saved.tensors},
      {"bytes", saved.bytes},
      {"overflowed", saved.overflowed},
      {"loaded", report.loaded.size()},
      {"missing", report.missing},
      {"unexpected", report.unexpected},
      {"kept", report.kept},
      {"ignored", report.ignored},
      {"reshaped", changes(report.reshaped)},
      {"mismatched", changes(report.mismatched)},
      {"left_out", exported.left_out},
      {"notes", report.notes},
      {"text", report.text()},
  };
  // Paths are whatever was typed.
  return document.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace
}  // namespace mhla::models

int mhla_model_convert(const mhla_conversion* request, char** text) {
  try {
    *text = strdup(mhla::models::convert(*request).c_str());
    return 0;
  } catch (const mhla::Error& error) {
    *text = strdup(error.what());
    return 1 + static_cast<int>(error.code());
  } catch (const std::exception& error) {
    const std::string whole = error.what();  // LibTorch's go on with a backtrace
    *text = strdup(whole.substr(0, whole.find('\n')).c_str());
    return 1 + static_cast<int>(mhla::ErrorCode::internal);
  }
}
