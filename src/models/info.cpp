#include "models/info.h"

#include <cstdio>
#include <cstring>
#include <map>

#include "models/attention.h"

namespace mhla::models {
namespace {

struct Part {
  std::string name;
  double macs = 0, kept = 0;
  std::int64_t parameters = 0;
};

bool contains(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

// The part of the cost sheet that a parameter belongs to.
std::string part_of(const std::string& name) {
  if (contains(name, "mixing_matrix") || contains(name, "_attn.conv.")) return "mixing";
  if (contains(name, "cross_attn.")) return "cross-attention";
  if (contains(name, "attn.")) return "attention projections";
  if (contains(name, "mlp.") || contains(name, "ffn.")) return "mlp";
  if (contains(name, "adaLN") || contains(name, "modulation") || contains(name, "scale_shift") ||
      contains(name, "time_") || contains(name, "t_block") || contains(name, "t_embedder")) {
    return "modulation";
  }
  if (contains(name, "patch_embed.proj.") || contains(name, "downsample.")) {
    return name.starts_with("patch_embed.proj.weight") || name.starts_with("patch_embed.proj.bias")
               ? "embedding"
               : "stem";
  }
  if (contains(name, "embed") || contains(name, "cls_token")) return "embedding";
  if (contains(name, "pos.") || contains(name, "dw_conv.")) return "convolution";
  if (contains(name, "norm") || contains(name, "gamma_")) return "norms";
  return "head";
}

std::vector<Part> parts_of(const Model& model) {
  std::vector<Part> parts;
  const auto at = [&parts](const std::string& name) -> Part& {
    for (Part& part : parts) {
      if (part.name == name) return part;
    }
    return parts.emplace_back(Part{.name = name});
  };
  const CostSheet sheet = model.cost();
  for (const Cost& cost : sheet.parts()) {
    Part& part = at(cost.part);
    part.macs = cost.macs;
    part.kept = cost.kept;
  }
  for (const auto& item : model.named_parameters()) {
    at(part_of(item.key())).parameters += item.value().numel();
  }
  return parts;
}

// A top-level module; a list of layers with the number of its entries.
struct LayerRow {
  std::string name;
  std::int64_t count = 1, parameters = 0;
};

bool holds_blocks(const torch::nn::Module& module) {
  for (const auto& child : module.named_children()) {
    if (child.key() == "blocks" || (child.key() == "0" && holds_blocks(*child.value())))
      return true;
  }
  return false;
}

void add_rows(const torch::nn::Module& module, const std::string& prefix,
              std::vector<LayerRow>& rows) {
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (child.key() == "model" || holds_blocks(*child.value())) {
      add_rows(*child.value(), name + ".", rows);
      continue;
    }
    const auto inner = child.value()->named_children();
    const bool list = child.key() == "blocks" || child.key() == "layers";
    rows.push_back({name, list ? static_cast<std::int64_t>(inner.size()) : 1,
                    count_parameters(*child.value())});
  }
}

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

template <typename... Values>
std::string print(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

struct Totals {
  std::int64_t parameters = 0;
  double macs = 0, kept = 0, mixing_macs = 0;
  std::int64_t mixing_parameters = 0;
};

Totals totals_of(const std::vector<Part>& parts) {
  Totals totals;
  for (const Part& part : parts) {
    totals.parameters += part.parameters;
    totals.macs += part.macs;
    totals.kept += part.kept;
    if (part.name != "mixing") continue;
    totals.mixing_macs = part.macs;
    totals.mixing_parameters = part.parameters;
  }
  return totals;
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text;
  for (const std::int64_t size : tensor.sizes()) {
    if (!text.empty()) text += ", ";
    text += std::to_string(size);
  }
  return "[" + text + "]";
}

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

std::string describe(const Model& model) {
  const std::vector<Part> parts = parts_of(model);
  const Totals all = totals_of(parts);
  std::string text = print("%-12s %s (family %s)\n", "model", model.name.c_str(),
                           model.family.c_str());
  text += "options      " + model.options + "\n";
  const auto names = model.input_names();
  const auto inputs = model.example_inputs(1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += print("%-12s ", i == 0 ? "inputs" : "") + names[i] + " " + shape_text(inputs[i]) + "\n";
  }
  text += print("%-12s %s (%.1f MiB in bf16)\n", "parameters", grouped(all.parameters).c_str(),
                2 * static_cast<double>(all.parameters) / kMiB);
  text += print("%-12s %.4g G a sample (%.4g G multiply-adds)\n", "FLOPs", 2 * all.macs / 1e9,
                all.macs / 1e9);
  text += print("%-12s about %.4g MiB in bf16, kept for the backward pass of a sample\n",
                "activations", 2 * all.kept / kMiB);
  text += print(
      "%-12s %s parameters (%.3f %%), %.2f %% of the multiply-adds\n\n", "mixing",
      grouped(all.mixing_parameters).c_str(),
      100.0 * static_cast<double>(all.mixing_parameters) / static_cast<double>(all.parameters),
      100.0 * all.mixing_macs / all.macs);
  text += print("%-24s %15s %12s %7s %12s\n", "part", "parameters", "M mult-adds", "share",
                "kept, MiB");
  for (const Part& part : parts) {
    text += print("%-24s %15s %12.4g %6.2f%% %12.4g\n", part.name.c_str(),
                  grouped(part.parameters).c_str(), part.macs / 1e6, 100 * part.macs / all.macs,
                  2 * part.kept / kMiB);
  }
  text += print("\n%-24s %15s\n", "layers", "parameters");
  std::vector<LayerRow> rows;
  add_rows(model, "", rows);
  for (const LayerRow& row : rows) {
    const std::string times = row.count > 1 ? " x " + std::to_string(row.count) : "";
    text += print("%-24s %15s\n", (row.name + times).c_str(), grouped(row.parameters).c_str());
  }
  return text;
}

std::string describe_json(const Model& model) {
  const std::vector<Part> parts = parts_of(model);
  const Totals all = totals_of(parts);
  std::string text = "{\"model\": \"" + model.name + "\", \"family\": \"" + model.family +
                     "\", \"options\": \"" + model.options + "\", ";
  text += print(
      "\"parameters\": %lld, \"macs\": %.17g, \"flops\": %.17g, \"kept_elements\": %.17g,",
      static_cast<long long>(all.parameters), all.macs, 2 * all.macs, all.kept);
  text += print(" \"mixing\": {\"parameters\": %lld, \"macs\": %.17g},\n \"parts\": [",
                static_cast<long long>(all.mixing_parameters), all.mixing_macs);
  const char* separator = "\n  ";
  for (const Part& part : parts) {
    text += separator +
            print("{\"part\": \"%s\", \"parameters\": %lld, \"macs\": %.17g, ", part.name.c_str(),
                  static_cast<long long>(part.parameters), part.macs) +
            print("\"kept_elements\": %.17g}", part.kept);
    separator = ",\n  ";
  }
  text += "],\n \"layers\": [";
  separator = "\n  ";
  std::vector<LayerRow> rows;
  add_rows(model, "", rows);
  for (const LayerRow& row : rows) {
    text += separator + print("{\"layer\": \"%s\", \"count\": %lld, \"parameters\": %lld}",
                              row.name.c_str(), static_cast<long long>(row.count),
                              static_cast<long long>(row.parameters));
    separator = ",\n  ";
  }
  text += "],\n \"inputs\": [";
  separator = "\n  ";
  const auto names = model.input_names();
  const auto inputs = model.example_inputs(1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += separator +
            ("{\"name\": \"" + names[i] + "\", \"shape\": " + shape_text(inputs[i]) + "}");
    separator = ",\n  ";
  }
  return text + "]}\n";
}

}  // namespace mhla::models

int mhla_model_info(const char* name, const char* options, int json, char** text) {
  try {
    if (*name == '\0') {
      std::string list;
      for (const std::string& each : mhla::models::model_names()) {
        list += json ? (list.empty() ? "\"" : ", \"") + each + "\"" : each + "\n";
      }
      *text = strdup((json ? "{\"models\": [" + list + "]}\n" : list).c_str());
      return 0;
    }
    const auto model = mhla::models::create_model(name, options, {.device = c10::kMeta});
    *text = strdup(
        (json ? mhla::models::describe_json(*model) : mhla::models::describe(*model)).c_str());
    return 0;
  } catch (const std::exception& error) {
    *text = strdup(error.what());
    return 1;
  }
}
