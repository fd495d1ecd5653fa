// What an attention layer computes, by name.
#include "mhla/error.h"
#include "models/attention.h"
#include "models/mhla_layer.h"
#include "models/vlt/grid_attention.h"

namespace mhla::models {
namespace {

constexpr const char* kProjections = "attention projections";
constexpr const char* kCore = "attention";
constexpr const char* kMixing = "mixing";

struct Widths {
  double n;             // tokens
  double keys, values;  // of all heads together
  double dk, dv;        // of one head
  double chunk = 64;    // causal forms go chunk by chunk
};

// Summaries and read-out.
double linear_macs(const Widths& w) { return 2 * w.n * w.keys * w.dv; }

// Inside a chunk, every token with those before it and with itself.
double triangle_macs(const Widths& w) {
  return w.n * (std::min(w.chunk, w.n) + 1) / 2 * (w.keys + w.values);
}

void count_mhla(CostSheet& sheet, Widths w, const Mixed& layer, bool normalised) {
  const double blocks = static_cast<double>(layer.layout().mixing_size());
  double pairs = blocks * blocks;
  double macs = linear_macs(w);
  if (layer.causal()) {
    pairs = blocks * (blocks - 1) / 2;
    w.chunk = static_cast<double>(layer.layout().max_block_tokens());
    macs += triangle_macs(w);
  }
  if (normalised) macs += w.n * w.keys;
  sheet.add(kCore, macs, w.n * (2 * w.keys + 2 * w.values));
  sheet.add(kMixing, pairs * w.keys * (normalised ? w.dv + 1 : w.dv), 0);
}

double core_macs(const std::string& name, const Widths& w, bool causal) {
  if (name == "softmax") {
    const double pairs = causal ? w.n * (w.n + 1) / 2 : w.n * w.n;
    return pairs * (w.keys + w.values);
  }
  if (name == "linear" && !causal) return linear_macs(w) + w.n * w.keys;
  if (name == "focused" || name == "inline") return linear_macs(w) + w.n * w.keys;
  if (name == "rala" || name == "mala") return linear_macs(w) + 2 * w.n * w.keys;
  // The delta rule also reads before it writes.
  if (name == "gated_deltanet") return 3 * w.n * w.keys * w.dv;
  return linear_macs(w) + triangle_macs(w);
}

double first_size(nn::Attention& layer, const char* parameter, double otherwise) {
  const auto parameters = layer.named_parameters();
  const auto* found = parameters.find(parameter);
  return found ? static_cast<double>(found->size(0)) : otherwise;
}

}  // namespace

void count_attention(CostSheet& sheet, const std::string& name, const Place& place,
                     nn::Attention& layer) {
  const double n = static_cast<double>(place.count()), dim = static_cast<double>(place.dim);
  const double heads = static_cast<double>(place.heads);
  // Every weight of two axes and more multiplies each token once.
  for (const auto& item : layer.named_parameters()) {
    const at::Tensor& weight = item.value();
    if (weight.dim() < 2 || item.key() == "positional_encoding" || item.key() == "scale") continue;
    if (item.key().find("mixing") != std::string::npos ||
        item.key().find("_attn.conv.") != std::string::npos) {
      continue;
    }
    double times = n;
    if (item.key().starts_with("residual.")) times = 1;  // InLine: made from the mean token
    if (item.key() == "dwc.weight") times = n * heads;   // focused: shared by the heads
    const bool depthwise = weight.dim() > 2 && weight.size(1) == 1;
    const double in = depthwise ? static_cast<double>(weight.size(0))
                                : static_cast<double>(weight.size(1));
    sheet.add(kProjections, times * static_cast<double>(weight.numel()), times * in);
  }
  if (name == "inline") sheet.add(kProjections, 9 * n * dim, n * dim);

  Widths w{.n = n, .keys = dim, .values = dim, .dk = dim / heads, .dv = dim / heads};
  if (const auto* mhla = dynamic_cast<const MhlaLayer*>(&layer)) {
    const nn::MHLAConfig& config = mhla->config();
    w.keys = static_cast<double>(config.dim_k);
    w.values = static_cast<double>(config.dim_v);
    w.dv = w.values / heads;
    return count_mhla(sheet, w, *mhla, config.normalizer != Normalizer::none);
  }
  if (const auto* grid = dynamic_cast<const GridAttention*>(&layer)) {
    return count_mhla(sheet, w, *grid, true);
  }
  if (name == "mamba2") {
    const double inner = static_cast<double>(layer.named_parameters()["norm.weight"].size(0));
    const double all = first_size(layer, "conv1d.weight", inner);
    w.dv = inner;  // B and C are shared by the heads
    w.keys = (all - inner) / 2;
    w.values = inner;
  } else {
    w.keys = first_size(layer, "q_proj.weight", dim);
    w.values = first_size(layer, "v_proj.weight", dim);
    w.dv = w.values / heads;
  }
  sheet.add(kCore, core_macs(name, w, place.task == Task::language),
            n * (2 * w.keys + 2 * w.values));
}

}  // namespace mhla::models
